package fsm

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestQuotasThatShareAPlace: what was asked for lately is found without a search, in one place for many numbers, and for many names.
// Quotas that share one do not meet, a frozen state keeps what it had, and a deleted quota is gone.
func TestQuotasThatShareAPlace(t *testing.T) {
	name := func(i int) string { return fmt.Sprintf("q%04d", i) }
	t.Run("of numbers", func(t *testing.T) { sharePlace(t, name(0), name(recentQuotas)) })
	t.Run("of names", func(t *testing.T) {
		first, second := ofOnePlace(t, recentQuotas)
		sharePlace(t, first, second)
	})
}

// ofOnePlace returns two names that share a place in a table of so many.
func ofOnePlace(t *testing.T, size uint32) (first, second string) {
	t.Helper()
	at := map[uint32]string{}
	for i := range size {
		name := fmt.Sprintf("q%04d", i)
		place := hashName(name) % size
		if other, taken := at[place]; taken {
			return other, name
		}
		at[place] = name
	}
	t.Fatal("no two names share a place")
	return "", ""
}

// TestHoldersThatShareAPlace: their leases are listed under each one's own name.
func TestHoldersThatShareAPlace(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 100, minute))
	first, second := ofOnePlace(t, recentHolders)
	for range 3 {
		w.granted(&logpb.Reserve{Holder: first, Items: []*logpb.Item{itemOf("r", 1)}})
		w.granted(&logpb.Reserve{Holder: second, Items: []*logpb.Item{itemOf("r", 1)}})
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
}

// sharePlace asks for two quotas of many in turn.
func sharePlace(t *testing.T, first, second string) {
	t.Helper()
	w := newWorld(t)
	for from := 0; from <= recentQuotas; from += 512 {
		var some []*logpb.Quota
		for i := from; i < min(from+512, recentQuotas+2); i++ {
			some = append(some, rateOf(fmt.Sprintf("q%04d", i), 10, minute))
		}
		w.apply(applyQuotas(some...))
	}
	a, b := w.m.quotaNamed(first).number, w.m.quotaNamed(second).number
	if a == b || a%recentQuotas != b%recentQuotas && w.m.recent.place(first) != w.m.recent.place(second) {
		t.Fatalf("%s and %s do not share a place", first, second)
	}
	held := func(s *State, name string) int64 { return s.quotaNamed(name).ledger.held }
	for n := range int64(5) {
		frozen := w.m.Freeze()
		var before, after bytes.Buffer
		if err := frozen.WriteSnapshot(&before); err != nil {
			t.Fatal(err)
		}
		for _, result := range w.apply(asks("a", 0, itemOf(first, 1)), asks("a", 0, itemOf(second, 2)), asks("b", 0, itemOf(first, 1))) {
			if result.GetGranted() == nil {
				t.Fatalf("not granted: %v", result)
			}
		}
		if err := frozen.WriteSnapshot(&after); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before.Bytes(), after.Bytes()) {
			t.Fatal("a frozen state changed")
		}
		if a, b := held(w.m.State(), first), held(w.m.State(), second); a != 2*(n+1) || b != 2*(n+1) {
			t.Fatalf("held %d and %d after %d rounds", a, b, n+1)
		}
	}
	w.apply(&logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: first, Force: true}}})
	if failure := w.apply(asks("a", 0, itemOf(first, 1)))[0].GetFailure(); failure.GetReason() != logpb.Reason_REASON_UNKNOWN_QUOTA {
		t.Fatalf("a deleted quota: %v", failure)
	}
	for lease := uint64(1); lease <= 15; lease++ {
		for _, item := range w.apply(releases(lease))[0].GetReleased().GetReturned() {
			if item.Quota == first {
				t.Fatalf("lease %d gives back of a deleted quota: %v", lease, item)
			}
		}
	}
	w.apply(applyQuotas(rateOf(first, 10, minute)))
	if result := w.apply(asks("a", 0, itemOf(first, 1)))[0]; result.GetGranted() == nil {
		t.Fatalf("a quota of the name of a deleted one: %v", result)
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
}
