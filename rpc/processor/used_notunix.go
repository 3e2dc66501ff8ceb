//go:build !unix

package processor

import "time"

// used reports nothing on this system: a call then keeps its first cost.
func used() (busy time.Duration, ok bool) { return 0, false }
