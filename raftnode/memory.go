package raftnode

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"os"
	runtimemetrics "runtime/metrics"
	"strconv"
	"strings"
)

// MemoryMark is the share of the memory limit, in percent, above which new grants are refused. Below memoryClear grants resume: freed
// memory returns to the system step by step, and the alarm must not flap meanwhile.
const (
	MemoryMark  = 85
	memoryClear = 80
)

// watchMemory refuses grants while the process uses nearly all of its memory limit. It never changes the state: only commands do.
func (n *Node) watchMemory() {
	if n.memoryMark == 0 {
		return
	}
	low := n.memoryMark / MemoryMark * memoryClear
	n.checkRepeatedly(func() bool {
		used, err := n.config.Memory()
		if err != nil {
			return true
		}
		n.metrics.memory.Set(float64(used))
		full := used > n.memoryMark || n.memoryFull.Load() && used > low
		if full != n.memoryFull.Swap(full) {
			n.reportMemory(full, used)
		}
		return true
	})
}

// markMemory computes the mark.
func (n *Node) markMemory() {
	if n.config.MemoryLimit > 0 {
		n.memoryMark = n.config.MemoryLimit / 100 * MemoryMark
		n.metrics.memoryMark.Set(float64(n.memoryMark))
	}
}

// MemoryFull tells whether the process uses nearly all of its memory limit.
func (n *Node) MemoryFull() bool { return n.memoryFull.Load() }

// reportMemory logs that the memory in use rose above the mark or fell back, with the consequence.
func (n *Node) reportMemory(full bool, used int64) {
	what := []any{"in_use", mebibytes(used), "mark", mebibytes(n.memoryMark)}
	if full {
		n.logger.Warn("memory is nearly used up: a leader refuses new grants and sessions, a follower holds no waiting calls; give the process "+
			"more memory",
			what...)
		return
	}
	n.logger.Info("enough memory is free again: grants continue", what...)
}

// errNoMemoryLimit says that no known limit applies to this process.
var errNoMemoryLimit = errors.New("no memory limit is known")

// SystemMemoryLimit returns the memory that this process may use, in bytes: the smallest of its control groups' limits and the machine's
// memory.
func SystemMemoryLimit() (int64, error) { return memoryLimitOf(os.DirFS("/")) }

// memoryLimitOf reads the limit from a system's files.
func memoryLimitOf(system fs.FS) (int64, error) {
	limit := int64(0)
	lower := func(value int64) {
		if value > 0 && (limit == 0 || value < limit) {
			limit = value
		}
	}
	for _, path := range memoryLimitFiles(system) {
		if text, err := fs.ReadFile(system, path); err == nil {
			if value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil { // otherwise it is "max"
				lower(value)
			}
		}
	}
	if total, err := fieldOf(system, "proc/meminfo", "MemTotal:"); err == nil {
		lower(total)
	}
	if limit == 0 {
		return 0, errNoMemoryLimit
	}
	return limit, nil
}

// memoryLimitFiles returns the files that limit the memory of this process's control groups, in version 2 and version 1, from its own group
// up.
func memoryLimitFiles(system fs.FS) (paths []string) {
	text, err := fs.ReadFile(system, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		root, file := "sys/fs/cgroup", "memory.max"
		switch {
		case fields[1] == "": // version 2
		case strings.Contains(","+fields[1]+",", ",memory,"):
			root, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := fields[2]; ; group = group[:strings.LastIndexByte(group, '/')] {
			paths = append(paths, root+strings.TrimSuffix(group, "/")+"/"+file)
			if !strings.Contains(strings.TrimSuffix(group, "/"), "/") {
				break
			}
			group = strings.TrimSuffix(group, "/")
		}
	}
	return paths
}

// memoryInUse returns the memory in use that the system cannot reclaim, in bytes: on Linux the resident anonymous memory, elsewhere what
// the Go runtime holds.
func memoryInUse() (int64, error) {
	if resident, err := fieldOf(os.DirFS("/"), "proc/self/status", "RssAnon:"); err == nil {
		return resident, nil
	}
	samples := []runtimemetrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	runtimemetrics.Read(samples)
	if samples[0].Value.Kind() != runtimemetrics.KindUint64 || samples[1].Value.Kind() != runtimemetrics.KindUint64 {
		return 0, errNoMemoryLimit
	}
	return int64(samples[0].Value.Uint64()) - int64(samples[1].Value.Uint64()), nil
}

// fieldOf returns a field of a /proc file, converted from KiB to bytes.
func fieldOf(system fs.FS, path, name string) (int64, error) {
	text, err := fs.ReadFile(system, path)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errNoMemoryLimit
}
