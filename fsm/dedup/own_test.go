package dedup

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestIsOwn_WithoutAnAccount: what was made before callers had accounts, or where there were too many of them, is told apart by reach.
func TestIsOwn_WithoutAnAccount(t *testing.T) {
	m := newMachine(t)
	m.book.Make(0, "")
	for _, number := range []uint64{0, m.book.Last, m.book.Last + 1} {
		command := &logpb.Command{By: "a*", Caller: "token:mine"}
		if !isOwn(&m.moment, command, "a*", number) || isOwn(&m.moment, command, "*", number) {
			t.Errorf("account %d: not by reach", number)
		}
	}
}
