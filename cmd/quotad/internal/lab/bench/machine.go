package bench

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// Machine describes the machine of a measurement.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory uint64 `json:"memory_bytes"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// DiskP50 and DiskP99 are the times of a write of 4 KiB with its sync on an idle machine, in microseconds. They bound
	// the cost of a durable decision from below, divided by the number of decisions that share a sync.
	DiskP50 int64 `json:"disk_sync_p50"`
	DiskP99 int64 `json:"disk_sync_p99"`
	// Load is the load average of the minute before: other programs on the machine spoil the figures.
	Load float64 `json:"load"`
}

// inspectMachine describes this machine, and measures the disk of a folder.
func inspectMachine(dir string) (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	if err := m.readProc(); err != nil {
		return m, err
	}
	m.Kernel = kernel()
	took, err := syncTimes(filepath.Join(dir, "sync-probe"), 200)
	if err != nil {
		return m, err
	}
	m.DiskP50, m.DiskP99 = took[len(took)/2].Microseconds(), took[len(took)*99/100].Microseconds()
	return m, nil
}

// syncTimes measures appends of 4 KiB with their syncs, and returns the times sorted.
func syncTimes(path string, n int) (_ []time.Duration, err error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = file.Close(), os.Remove(path) }()
	took := make([]time.Duration, n)
	for i := range took {
		started := time.Now()
		if _, err := file.Write(make([]byte, 4096)); err != nil {
			return nil, err
		}
		if err := file.Sync(); err != nil {
			return nil, err
		}
		took[i] = time.Since(started)
	}
	slices.Sort(took)
	return took, nil
}
