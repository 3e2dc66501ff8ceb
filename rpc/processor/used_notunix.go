//go:build !unix

package processor

import "time"

// used returns nothing where it cannot be asked for; a call costs what it is taken to cost at first then.
func used() (busy time.Duration, ok bool) { return 0, false }
