//go:build !linux

package bench

// readProc has nothing to read: only Linux tells processor, memory and load in /proc.
func (m *Machine) readProc() error { return nil }
