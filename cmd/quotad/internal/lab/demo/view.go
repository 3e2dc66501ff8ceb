package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// view shows what goes on: a picture that is drawn over and over in a terminal, lines elsewhere.
type view struct {
	out io.Writer
	// size returns the terminal's size; nil: it is none.
	size func() (width, height int)
	// lineEvery is how often lines are written where there is no terminal.
	lineEvery time.Duration

	mu       sync.Mutex
	notes    []string
	drawn    bool
	lastLine time.Duration
}

// maxNotes is how many of the latest notes the picture shows.
const maxNotes = 6

func newView(out io.Writer) *view {
	v := &view{out: out, lineEvery: 5 * time.Second, lastLine: -time.Hour}
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || os.Getenv("CI") != "" || os.Getenv("TERM") == "dumb" {
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

// The escape sequences that it takes: hide and show the cursor, go home, clear to the end of the line and the screen.
const (
	hideCursor  = "\x1b[?25l"
	showCursor  = "\x1b[?25h"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearScreen = "\x1b[J"
)

// say writes something down that happened.
func (v *view) say(passed time.Duration, format string, values ...any) {
	note := clock(passed) + " " + fmt.Sprintf(format, values...)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.notes = append(v.notes, note)
	if v.size == nil || !v.drawn {
		fmt.Fprintln(v.out, note)
	}
}

// show shows a scene.
func (v *view) show(d *demo, s scene, passed time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.size == nil {
		if passed-v.lastLine < v.lineEvery {
			return
		}
		v.lastLine = passed
		for _, line := range d.plain(s, passed) {
			fmt.Fprintln(v.out, line)
		}
		return
	}
	width, height := v.size()
	var picture strings.Builder
	if !v.drawn {
		picture.WriteString(hideCursor)
		picture.WriteString(home + clearScreen)
		v.drawn = true
	}
	picture.WriteString(home)
	lines := d.frame(s, passed, v.notes[max(len(v.notes)-maxNotes, 0):])
	for i, line := range lines[:min(len(lines), height-1)] {
		if i > 0 {
			picture.WriteString("\n")
		}
		picture.WriteString(cut(line, width) + clearLine)
	}
	picture.WriteString(clearScreen)
	_, _ = io.WriteString(v.out, picture.String()) // a terminal that is gone ends the process otherwise
}

// cut shortens a line of ASCII to the width.
func cut(line string, width int) string {
	if len(line) > width {
		return line[:width]
	}
	return line
}

// end leaves the terminal as it was.
func (v *view) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.drawn {
		_, _ = io.WriteString(v.out, "\n"+showCursor)
		v.drawn = false
	}
}
