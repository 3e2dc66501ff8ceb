package processor

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of /proc/stat.
const tick = time.Second / 100

// allowed are the processors that this process may run on, by their names in /proc/stat.
var allowed = sync.OnceValue(func() map[string]bool {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	names := map[string]bool{}
	for number := range len(set) * 64 {
		if set.IsSet(number) {
			names["cpu"+strconv.Itoa(number)] = true
		}
	}
	return names
})

// unused returns how long the processors that this process may run on were idle, each since the machine started, summed up. ok is false
// if the system does not report it.
func unused() (idle time.Duration, ok bool) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(stat)); lines.Scan(); {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) < 6 || !allowed()[string(fields[0])] {
			continue
		}
		for _, field := range fields[4:6] { // idle, and idle while a disk works
			ticks, err := strconv.ParseInt(string(field), 10, 64)
			if err != nil {
				return 0, false
			}
			idle += time.Duration(ticks) * tick
			ok = true
		}
	}
	return idle, ok
}
