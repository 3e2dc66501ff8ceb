//go:build !linux

package processor

import "time"

// unused returns nothing where it cannot be asked for; whether the node is busy is told by timers alone then.
func unused() (idle time.Duration, ok bool) { return 0, false }
