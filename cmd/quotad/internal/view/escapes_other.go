//go:build !windows

package view

import "os"

// takesEscapes reports whether a terminal accepts escape sequences.
func takesEscapes(*os.File) bool { return true }
