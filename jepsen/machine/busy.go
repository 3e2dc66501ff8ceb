// Package machine measures the use of the machine during a run.
package machine

import (
	"fmt"
	"os"
)

// Busy begins a measurement. The returned function returns the part of the processors' time that was in use since, from 0 to 1; 0 if that
// is unknown.
func Busy() func() float64 {
	idle, all := processors()
	return func() float64 {
		idleNow, allNow := processors()
		if allNow == all {
			return 0
		}
		return 1 - float64(idleNow-idle)/float64(allNow-all)
	}
}

// processors reads the kernel's count of processor time (proc(5), /proc/stat).
func processors() (idle, all uint64) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	var of [8]uint64 // user, nice, system, idle, iowait, irq, softirq, steal
	if _, err := fmt.Sscanf(string(data), "cpu %d %d %d %d %d %d %d %d", &of[0], &of[1], &of[2], &of[3], &of[4], &of[5], &of[6],
		&of[7]); err != nil {
		return 0, 0
	}
	for _, ticks := range of {
		all += ticks
	}
	return of[3] + of[4], all
}
