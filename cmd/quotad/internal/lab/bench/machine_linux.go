package bench

import "github.com/prometheus/procfs"

// readProc reads processor, memory and load from /proc.
func (m *Machine) readProc() error {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return err
	}
	if cpus, err := fs.CPUInfo(); err == nil && len(cpus) > 0 {
		m.CPU = cpus[0].ModelName
	}
	if memory, err := fs.Meminfo(); err == nil && memory.MemTotalBytes != nil {
		m.Memory = *memory.MemTotalBytes
	}
	if average, err := fs.LoadAvg(); err == nil {
		m.Load = average.Load1
	}
	return nil
}
