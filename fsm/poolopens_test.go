package fsm

import (
	"fmt"
	"testing"

	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestPool_NamesTheMemberThatOpensFirst: the answer is about the member that opens first, whatever its retry time,
// which is spread by holder and quota. So is that of a task on the pool.
func TestPool_NamesTheMemberThatOpensFirst(t *testing.T) {
	for _, level := range []uint32{levels.FirstToOpen - 1, levels.FirstToOpen} {
		t.Run(fmt.Sprint("level ", level), func(t *testing.T) {
			w := keysWorld(t)
			w.atLevel(level)
			for member, after := range map[string]int64{"a": 30*second + 500*millisecond, "b": 30 * second} { // in any order
				w.closes(w.granted(with(pins("x", member, itemOf("requests", 1)), consumed)), member+"/requests", after)
			}
			others := 0
			count := func(refusal *logpb.Refusal) {
				if refusal.GetReason() != logpb.Reason_REASON_COOLDOWN || refusal.RetryAtNs < refusal.ReopensAtNs {
					t.Fatal(refusal)
				}
				if refusal.Quota != "b/requests" || refusal.ReopensAtNs != 30*second {
					others++
				}
			}
			for n := range 20 {
				count(w.refused(ask(fmt.Sprint("h", n), itemOf("requests", 1)), logpb.Reason_REASON_COOLDOWN))
				begin := begins(fmt.Sprint("t", n), fmt.Sprint("h", n), 0)
				begin.GetBeginTask().Quotas = []string{"requests"}
				count(w.do(begin).GetRefusal())
			}
			if (others == 0) != (level >= levels.FirstToOpen) {
				t.Errorf("%d of 40 refusals are about the other member", others)
			}
		})
	}
}

func consumed(req *logpb.Reserve) { req.Consume = true }

// TestPool_OpensWhenAllOfAMemberDoes: a member opens when its last obstacle is gone.
func TestPool_OpensWhenAllOfAMemberDoes(t *testing.T) {
	w := keysWorld(t)
	w.atLevel(levels.FirstToOpen)
	both := func(member string) *logpb.Granted {
		return w.granted(with(pins("x", member, itemOf("requests", 1), itemOf("tokens", 1)), consumed))
	}
	a, b := both("a"), both("b")
	w.closes(a, "a/requests", 20*second)
	w.closes(a, "a/tokens", 41*second)
	w.closes(b, "b/requests", 40*second)
	for n := range 20 {
		refusal := w.refused(ask(fmt.Sprint("h", n), itemOf("requests", 1), itemOf("tokens", 1)), logpb.Reason_REASON_COOLDOWN)
		if refusal.Quota != "b/requests" {
			t.Fatal(refusal)
		}
	}
}
