//go:build !linux

package bench

// readProc does nothing: only Linux reports processor, memory and load in /proc.
func (m *Machine) readProc() error { return nil }
