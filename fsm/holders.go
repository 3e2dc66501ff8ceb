package fsm

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// holderTables have the records of holders: their virtual times, their stats and meters by quota, and the position of
// the sweep over these. Only this type makes, resizes and drops records that are charged to accounts.
type holderTables struct {
	*moment
	quotas *quotaTable
	// book has the accounts that are charged with the records.
	book   *accounts.Book
	byName *cow.Map[string, *holder]
	// seen are all holders, by when they were last seen.
	seen  *cow.Set[dueByName]
	stats *cow.Set[*holderStats]
	// closed are the holder stats with a breaker that is or was open.
	closed *cow.Set[quotaHolder]
	meters *cow.Set[*meter]
	sweep  sweep
	// recent is the holder changed last, which the next command often names again. It is a cache, and never affects
	// results.
	recent *holder
}

// leaseFinder finds leases.
type leaseFinder interface {
	// newestLease returns a holder's newest live lease; nil: none.
	newestLease(holder string) *lease
}

type quotaHolder struct {
	quota  uint32
	holder string
}

func lessQuotaHolder(a, b quotaHolder) bool {
	return cmp.Or(cmp.Compare(a.quota, b.quota), cmp.Compare(a.holder, b.holder)) < 0
}

func newHolders() *holderTables {
	return &holderTables{
		byName: new(cow.Map[string, *holder]), seen: cow.NewDues[string](), stats: cow.NewSet(lessStats),
		closed: cow.NewSet(lessQuotaHolder), meters: cow.NewSet(lessMeter),
	}
}

// copy returns tables that share everything until one of the two changes.
func (hs *holderTables) copy() *holderTables {
	return &holderTables{
		byName: hs.byName.Copy(), seen: hs.seen.Copy(), stats: hs.stats.Copy(), closed: hs.closed.Copy(), meters: hs.meters.Copy(),
		sweep: hs.sweep,
	}
}

func (h *holder) encode() *logpb.SnapshotHolder {
	return &logpb.SnapshotHolder{Name: h.name, VirtualTime: h.virtualTime, SeenNs: h.seen, Rest: h.rest, Account: h.account}
}

func (t *holderStats) encode() *logpb.SnapshotHolderStats {
	return &logpb.SnapshotHolderStats{
		Holder: t.holder, Quota: t.quota, Grants: t.grants, GrantedNs: t.granted, Failures: t.failures, ClosedUntilNs: t.closedUntil,
		DeniedNs: t.denied, MemberQuota: t.member,
	}
}

func (hs *holderTables) takeHolder(encoded *logpb.SnapshotHolder) error {
	h := &holder{
		Made: cow.In(hs.generation), name: encoded.Name, virtualTime: encoded.VirtualTime, rest: encoded.Rest, seen: encoded.SeenNs,
		account: encoded.Account,
	}
	if err := hs.book.Charge(h.account, accounts.Holders, h.size()); err != nil {
		return err
	}
	hs.byName.Set(h.name, h)
	hs.seen.Set(dueByName{At: h.seen, ID: h.name})
	return nil
}

func (hs *holderTables) takeStats(encoded *logpb.SnapshotHolderStats) error {
	h, known := hs.byName.Get(encoded.Holder)
	if !known {
		return fmt.Errorf("stats of holder %q, which is not remembered", encoded.Holder)
	}
	t := &holderStats{
		Made: cow.In(hs.generation), holder: h.name, quota: encoded.Quota, grants: encoded.Grants,
		granted: encoded.GrantedNs, failures: encoded.Failures, denied: encoded.DeniedNs, member: encoded.MemberQuota,
	}
	hs.stats.Set(t)
	hs.closeFor(t, encoded.ClosedUntilNs)
	return hs.book.Charge(h.account, accounts.Holders, statsSize)
}

func (hs *holderTables) takeMeter(encoded *logpb.SnapshotMeter) error {
	h, known := hs.byName.Get(encoded.Holder)
	if !known {
		return fmt.Errorf("a meter is of holder %q, of whom nothing is remembered", encoded.Holder)
	}
	t := decodeMeter(encoded, hs.generation)
	t.holder = h.name
	hs.meters.Set(t)
	return hs.book.Charge(h.account, accounts.Holders, t.size())
}

// eachMemory calls fn for each record of a holder, with its size in bytes.
func (hs *holderTables) eachMemory(fn func(h *holder, bytes int64)) {
	of := func(name string, bytes int64) {
		if h, known := hs.byName.Get(name); known { // another check reports an unknown holder
			fn(h, bytes)
		}
	}
	hs.byName.Scan(func(_ string, h *holder) bool {
		fn(h, h.size())
		return true
	})
	hs.stats.Scan(func(t *holderStats) bool {
		of(t.holder, statsSize)
		return true
	})
	hs.meters.Scan(func(t *meter) bool {
		of(t.holder, t.size())
		return true
	})
}

// verify checks the holders' records.
func (hs *holderTables) verify() error {
	var errs []error
	hs.byName.Scan(func(name string, h *holder) bool {
		if h.name != name || h.rest < 0 || h.rest >= maxWeight || !cow.Has(hs.seen, dueByName{At: h.seen, ID: name}) {
			errs = append(errs, fmt.Errorf("holder %q is not listed by when it was seen, %d, or has a rest of %d", name, h.seen, h.rest))
		}
		return len(errs) < maxReported
	})
	hs.stats.Scan(func(t *holderStats) bool {
		if _, ok := hs.byName.Get(t.holder); !ok {
			errs = append(errs, fmt.Errorf("stats of quota %d are of holder %q, which is not remembered", t.quota, t.holder))
		}
		return len(errs) < maxReported
	})
	hs.meters.Scan(func(t *meter) bool {
		if err := t.used.Check(); err != nil {
			errs = append(errs, fmt.Errorf("holder %q, quota %d: %w", t.holder, t.quota, err))
		}
		return len(errs) < maxReported
	})
	return errors.Join(append(errs, cow.Mirrored("holders by when they were seen", hs.byName.Len(), hs.seen.Len()))...)
}
