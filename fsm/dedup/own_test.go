package dedup

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestIsOwn_WithoutAnAccount: sessions from before callers had accounts, or from when there were too many, are
// identified by reach.
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
