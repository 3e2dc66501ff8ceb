package view

import (
	"os"

	"golang.org/x/sys/windows"
)

// takesEscapes makes a console accept escape sequences, which Windows 10 and later support, and reports whether it does.
func takesEscapes(terminal *os.File) bool {
	handle := windows.Handle(terminal.Fd())
	var mode uint32
	return windows.GetConsoleMode(handle, &mode) == nil &&
		windows.SetConsoleMode(handle, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
