package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// syncCounter counts the calls of fsync and fdatasync of processes by the kernel's tracepoints. The count is exact and
// works for any program, and it slows nothing down. A tracer would stop the program at each call.
type syncCounter struct{ events []int }

// countSyncs starts to count, in all existing and future threads of the processes. It needs root or CAP_PERFMON.
func countSyncs(pids []int) (*syncCounter, error) {
	c := &syncCounter{}
	for _, name := range []string{"sys_enter_fsync", "sys_enter_fdatasync"} {
		id, err := tracepoint(name)
		if err != nil {
			c.close()
			return nil, err
		}
		for _, pid := range pids {
			if err := c.watch(id, pid); err != nil {
				c.close()
				return nil, fmt.Errorf("counting %s of process %d: %w", name, pid, err)
			}
		}
	}
	return c, nil
}

// watch counts a tracepoint in every thread of a process.
func (c *syncCounter) watch(id uint64, pid int) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			return err
		}
		attr := &unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Config: id, Bits: unix.PerfBitInherit}
		attr.Size = uint32(unsafe.Sizeof(*attr))
		event, err := unix.PerfEventOpen(attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ESRCH) {
			continue // it has ended since
		}
		if err != nil {
			return err
		}
		c.events = append(c.events, event)
	}
	return nil
}

// count returns the number of calls since the counter was made.
func (c *syncCounter) count() (int64, error) {
	var total uint64
	for _, event := range c.events {
		var value [8]byte
		if _, err := unix.Read(event, value[:]); err != nil {
			return 0, fmt.Errorf("reading the count of syncs: %w", err)
		}
		total += binary.NativeEndian.Uint64(value[:])
	}
	return int64(total), nil
}

func (c *syncCounter) close() {
	if c == nil {
		return
	}
	for _, event := range c.events {
		_ = unix.Close(event)
	}
	c.events = nil
}

// tracepoint returns the id of a system call's tracepoint. If no tracefs is mounted, it mounts one while it reads the id.
func tracepoint(name string) (uint64, error) {
	number := func(root string) (uint64, error) {
		data, err := os.ReadFile(filepath.Join(root, "events", "syscalls", name, "id"))
		if err != nil {
			return 0, err
		}
		return strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	}
	if id, err := number("/sys/kernel/tracing"); err == nil {
		return id, nil
	}
	dir, err := os.MkdirTemp("", "tracing-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(dir) }()
	if err := unix.Mount("tracefs", dir, "tracefs", unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_RDONLY, ""); err != nil {
		return 0, fmt.Errorf("mounting the kernel's tracing: %w", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	return number(dir)
}
