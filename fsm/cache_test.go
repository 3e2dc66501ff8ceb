package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestQuotaCache_KeepsCollidingQuotasApart: recently used quotas are found without a search, in one slot for many numbers, and in a
// set of two for many names. Quotas that share one do not interfere, a frozen state keeps its quotas, and a deleted
// quota is gone.
func TestQuotaCache_KeepsCollidingQuotasApart(t *testing.T) {
	name := func(i int) string { return fmt.Sprintf("q%04d", i) }
	t.Run("of numbers", func(t *testing.T) { sharePlace(t, name(0), name(cachedQuotas)) })
	t.Run("of names", func(t *testing.T) { sharePlace(t, ofOnePlace(t, 3, entry.NameSets)...) })
}

// TestQuotaCache_SpreadsNames: names that differ in a few characters are spread over the sets, whatever their length.
func TestQuotaCache_SpreadsNames(t *testing.T) {
	for length := 3; length <= 34; length++ {
		for _, last := range []bool{true, false} { // where they differ
			places := map[uint32]bool{}
			for i := range 1000 {
				name := fmt.Sprintf("%0*d", length, i)
				if !last {
					name = fmt.Sprintf("%03d", i) + strings.Repeat("q", length-3)
				}
				places[entry.HashName(name)%entry.NameSets] = true
			}
			if len(places) < 700 { // 890 of 4,096 if they were random
				t.Errorf("names of %d bytes (differ at the end: %t) are in %d sets", length, last, len(places))
			}
		}
	}
}

// ofOnePlace returns count names that share a slot in a table of a size.
func ofOnePlace(t *testing.T, count int, size uint32) []string {
	t.Helper()
	at := map[uint32][]string{}
	for i := range cachedQuotas {
		name := fmt.Sprintf("q%04d", i)
		place := entry.HashName(name) % size
		if at[place] = append(at[place], name); len(at[place]) == count {
			return at[place]
		}
	}
	t.Fatal("no names share a place")
	return nil
}

// TestHolderCache_KeepsCollidingHoldersApart: their leases are listed under their own names.
func TestHolderCache_KeepsCollidingHoldersApart(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 100, minute))
	holders := ofOnePlace(t, 2, cachedHolders)
	for i := range 6 {
		w.granted(&logpb.Reserve{Holder: holders[i%2], Items: []*logpb.Item{itemOf("r", 1)}})
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
}

// sharePlace requests many quotas, and those that share a slot in turn.
func sharePlace(t *testing.T, names ...string) {
	t.Helper()
	w := newWorld(t)
	for from := 0; from <= cachedQuotas; from += 512 {
		var some []*logpb.Quota
		for i := from; i < min(from+512, cachedQuotas+2); i++ {
			some = append(some, rateOf(fmt.Sprintf("q%04d", i), 10, minute))
		}
		w.apply(applyQuotas(some...))
	}
	for n := range int64(3) {
		frozen := w.m.Freeze()
		var before, after bytes.Buffer
		if err := frozen.WriteSnapshot(&before); err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			for range i + 1 {
				if result := w.apply(asks("a", 0, itemOf(name, 1)), asks("b", 0, itemOf("q4097", 1)))[0]; result.GetGranted() == nil {
					t.Fatalf("not granted: %v", result)
				}
			}
		}
		if err := frozen.WriteSnapshot(&after); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before.Bytes(), after.Bytes()) {
			t.Fatal("a frozen state changed")
		}
		for i, name := range names {
			if held := w.m.State().quotas.named(name).ledger.Held; held != int64(i+1)*(n+1) {
				t.Fatalf("of %s %d are held after %d rounds", name, held, n+1)
			}
		}
	}
	gone := names[0]
	w.apply(&logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: gone, Force: true}}})
	if failure := w.apply(asks("a", 0, itemOf(gone, 1)))[0].GetFailure(); failure.GetReason() != logpb.Reason_REASON_UNKNOWN_QUOTA {
		t.Fatalf("a deleted quota: %v", failure)
	}
	for lease := range w.m.lastLease {
		for _, item := range w.apply(releases(lease + 1))[0].GetReleased().GetReturned() {
			if item.Quota == gone {
				t.Fatalf("lease %d returns units of a deleted quota: %v", lease, item)
			}
		}
	}
	w.apply(applyQuotas(rateOf(gone, 10, minute)))
	if result := w.apply(asks("a", 0, itemOf(gone, 1)))[0]; result.GetGranted() == nil {
		t.Fatalf("a quota of the name of a deleted one: %v", result)
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
}
