package bench

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// Cost is the resources that processes used.
type Cost struct {
	// CPUSeconds is processor time, user and system.
	CPUSeconds float64 `json:"cpu_seconds"`
	// WriteBytes is the number of bytes that they caused to be written to the disk.
	WriteBytes uint64 `json:"write_bytes"`
	// Syncs is the number of their calls of fsync and fdatasync; nil: this machine does not permit counting.
	Syncs *int64 `json:"syncs"`
}

// meter reads the resource use of processes.
type meter struct {
	processes []procfs.Proc
	syncs     *syncCounter
}

// newMeter starts to measure processes. It counts syncs where it may use the kernel's tracepoints.
func newMeter(pids []int) (*meter, error) {
	m := &meter{}
	for _, pid := range pids {
		p, err := procfs.NewProc(pid)
		if err != nil {
			return nil, err
		}
		m.processes = append(m.processes, p)
	}
	m.syncs, _ = countSyncs(pids)
	return m, nil
}

func (m *meter) close() { m.syncs.close() }

// read returns the cost so far.
func (m *meter) read() (Cost, error) {
	var total Cost
	for _, p := range m.processes {
		stat, err := p.Stat()
		if err != nil {
			return Cost{}, fmt.Errorf("process %d: %w", p.PID, err)
		}
		io, err := p.IO()
		if err != nil {
			return Cost{}, fmt.Errorf("process %d: %w", p.PID, err)
		}
		total.CPUSeconds += stat.CPUTime()
		total.WriteBytes += io.WriteBytes
	}
	if m.syncs != nil {
		count, err := m.syncs.count()
		if err != nil {
			return Cost{}, err
		}
		total.Syncs = &count
	}
	return total, nil
}

// since returns the cost since an earlier reading.
func (c Cost) since(before Cost) Cost {
	spent := Cost{CPUSeconds: c.CPUSeconds - before.CPUSeconds, WriteBytes: c.WriteBytes - before.WriteBytes}
	if c.Syncs != nil && before.Syncs != nil {
		count := *c.Syncs - *before.Syncs
		spent.Syncs = &count
	}
	return spent
}

// own returns the processor time of this process, which runs the callers.
func own() (time.Duration, error) {
	p, err := procfs.Self()
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}
