// Package view shows the state of a cluster in a terminal, repeatedly. It does not depend on how the cluster runs.
package view

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// Screen shows progress: in a terminal a picture that it redraws, elsewhere lines.
type Screen struct {
	out io.Writer
	// size returns the terminal's size; nil: no terminal.
	size func() (width, height int)
	// lineEvery is the shortest interval between lines if there is no terminal.
	lineEvery time.Duration

	mu       sync.Mutex
	notes    []string
	drawn    bool
	lastLine time.Duration
}

// maxNotes is the number of recent notes in the picture.
const maxNotes = 6

// NewScreen returns a screen that writes to out.
func NewScreen(out io.Writer) *Screen {
	v := &Screen{out: out, lineEvery: 5 * time.Second, lastLine: -time.Hour}
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || !takesEscapes(file) || os.Getenv("CI") != "" || os.Getenv("TERM") == "dumb" {
		return v
	}
	v.size = func() (int, int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil || width < 20 || height < 5 {
			return 80, 24
		}
		return width, height
	}
	return v
}

// Terminal reports whether the screen is a terminal.
func (v *Screen) Terminal() bool { return v.size != nil }

// The escape sequences in use: hide and show the cursor, move home, clear to the end of the line and of the screen.
const (
	hideCursor  = "\x1b[?25l"
	showCursor  = "\x1b[?25h"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearScreen = "\x1b[J"
)

// Say adds a note about an event.
func (v *Screen) Say(passed time.Duration, format string, values ...any) {
	note := Clock(passed) + " " + fmt.Sprintf(format, values...)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.notes = append(v.notes, note)
	if v.size == nil || !v.drawn {
		fmt.Fprintln(v.out, note)
	}
}

// Show draws a picture with the latest notes below it. Without a terminal it writes plain lines now and then.
func (v *Screen) Show(passed time.Duration, picture func(notes []string) []string, plain func() []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.size == nil {
		if passed-v.lastLine < v.lineEvery {
			return
		}
		v.lastLine = passed
		for _, line := range plain() {
			fmt.Fprintln(v.out, line)
		}
		return
	}
	width, height := v.size()
	var drawing strings.Builder
	if !v.drawn {
		drawing.WriteString(hideCursor)
		drawing.WriteString(home + clearScreen)
		v.drawn = true
	}
	drawing.WriteString(home)
	lines := picture(v.notes[max(len(v.notes)-maxNotes, 0):])
	for i, line := range lines[:min(len(lines), height-1)] {
		if i > 0 {
			drawing.WriteString("\n")
		}
		drawing.WriteString(cut(line, width) + clearLine)
	}
	drawing.WriteString(clearScreen)
	_, _ = io.WriteString(v.out, drawing.String()) // if the terminal is gone, the process ends otherwise
}

// Clock formats a duration as 1:05.
func Clock(d time.Duration) string {
	seconds := int(d.Seconds())
	return fmt.Sprintf("%d:%02d", seconds/60, seconds%60)
}

// cut shortens a line to the width, with one column for each character.
func cut(line string, width int) string {
	if utf8.RuneCountInString(line) > width {
		return string([]rune(line)[:width])
	}
	return line
}

// End restores the terminal.
func (v *Screen) End() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.drawn {
		_, _ = io.WriteString(v.out, "\n"+showCursor)
		v.drawn = false
	}
}
