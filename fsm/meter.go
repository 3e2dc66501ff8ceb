package fsm

import (
	"cmp"
	"slices"
	"strings"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// meter has the counters of one holder for one quota that is metered, or in which it has a share.
type meter struct {
	cow.Made
	holder string
	quota  uint32
	// used is its held and consumed amount in window.
	window int64
	used   ledger.Usage
	MeterCounts
}

// maxMeters bounds the counters of holders that come and go. Once there are so many pairs of holder and quota, a new
// pair gets a meter only if the holder has a share.
const maxMeters = 200_000

func lessMeter(a, b *meter) bool {
	return cmp.Or(strings.Compare(a.holder, b.holder), cmp.Compare(a.quota, b.quota)) < 0
}

// meterOf returns a holder's meter of a quota for update; nil: none.
func (hs *holderTables) meterOf(q *quota, name string) *meter {
	if !q.rule.Policy.Meters(name) {
		return nil
	}
	known, ok := hs.meters.Get(&meter{holder: name, quota: q.number})
	if !ok && q.rule.Policy.Shares.Holder(name) == 0 && !hs.roomForMeter(name) {
		return nil
	}
	h := hs.use(name)
	if ok && known.MadeIn(hs.generation) {
		return known
	}
	c := &meter{holder: h.name, quota: q.number}
	if ok {
		*c = *known
		c.used, c.Denials = known.used.Clone(), slices.Clone(known.Denials)
	}
	c.Made = cow.In(hs.generation)
	if !ok {
		hs.book.Add(h.account, accounts.Holders, c.size())
	}
	hs.meters.Set(c)
	return c
}

// roomForMeter reports whether a holder with a record may have one more meter. Meters take at most half of the caller's
// budget: counting must not keep others from being served.
func (hs *holderTables) roomForMeter(name string) bool {
	h, known := hs.byName.Get(name)
	return known && hs.meters.Len() < maxMeters && hs.book.HasLessThan(2, h.account, accounts.Holders, hs.clock.Now)
}

// mayGrow reports whether a meter may list one more entry.
func (hs *holderTables) mayGrow(t *meter) bool {
	h := hs.get(t.holder)
	return h != nil && hs.book.HasLessThan(2, h.account, accounts.Holders, hs.clock.Now)
}

// size returns the size of a meter in bytes.
func (t *meter) size() int64 { return meterSize + listedSize*int64(len(t.used.Ends)+len(t.Denials)) }

// resized charges the change in size of a meter that took was bytes.
func (hs *holderTables) resized(t *meter, was int64) {
	if size := t.size(); size != was {
		hs.charge(t.holder, size-was)
	}
}

// unmeter releases the charges of dropped meters.
func (hs *holderTables) unmeter(dropped ...*meter) {
	for _, t := range dropped {
		hs.charge(t.holder, -t.size())
	}
}

// usedBy returns a holder's held and consumed amount in the present window.
func (hs *holderTables) usedBy(q *quota, name string) int64 {
	t, ok := hs.meters.Get(&meter{holder: name, quota: q.number})
	if !ok || t.window != q.ledger.Window {
		return 0
	}
	return t.used.Since(q.ledger.Cutoff)
}

// answered counts an answer of the provider.
func (t *meter) answered(cause logpb.Cause) {
	switch {
	case cause == logpb.Cause_CAUSE_OK:
		t.Answered++
	case saysLimited(cause):
		t.Limited++
	}
}

// recordReturned counts the part of a consumed amount that returned.
func (hs *holderTables) recordReturned(q *quota, name string, amount int64) {
	if t := hs.meterOf(q, name); t != nil {
		t.Returned = fixed.AddSaturated(t.Returned, amount)
	}
}

// recordRefusal counts a refusal for the quota that it names.
func (m *Machine) recordRefusal(name string, refusal *logpb.Refusal) {
	q := m.quotas.named(refusal.Quota)
	if _, known := m.holders.byName.Get(name); !known || q == nil {
		return // names that were never granted anything must not fill the tables
	}
	t := m.holders.meterOf(q, name)
	if t == nil {
		return
	}
	i, found := slices.BinarySearchFunc(t.Denials, refusal.Reason, func(d Denial, reason logpb.Reason) int {
		return cmp.Compare(d.Reason, reason)
	})
	if !found {
		if !m.holders.mayGrow(t) {
			return
		}
		defer m.holders.resized(t, t.size())
		t.Denials = slices.Insert(t.Denials, i, Denial{Reason: refusal.Reason})
	}
	t.Denials[i].Times++
}

// usesAny reports whether a holder used something of a present window for which it has a meter.
func (hs *holderTables) usesAny(name string) (uses bool) {
	hs.meters.Ascend(&meter{holder: name}, func(t *meter) bool {
		if t.holder == name && t.used.Amount > 0 {
			q, ok := hs.quotas.byNumber.Get(t.quota)
			uses = ok && t.window == q.ledger.Window && q.ledger.UsedByAll() > 0
		}
		return t.holder == name && !uses
	})
	return uses
}

// UsageFilter selects meters.
type UsageFilter struct {
	// Holder and Quota are names; empty: any.
	Holder, Quota string
	// Shown reports whether a holder's meters are shown; nil: all.
	Shown func(holder string) bool
}

// UsageMark is a position in the order of holders and quotas, after a meter. The zero value is before all meters.
type UsageMark struct {
	Holder string
	// Quota is the number of the holder's last quota.
	Quota uint32
}

// UsagePage returns up to limit meters in the order of holders and quotas, after a mark. next is the mark of the next
// page, zero after the last meter. A page ends early, and may be empty, when finding more costs too much. The leases of
// the first holder on the page are all counted.
func (s *State) UsagePage(of UsageFilter, after UsageMark, limit int, at Clock) (views []UsageView, next UsageMark) {
	p := &reservations{paging: paging{at: at}}
	from := &meter{holder: max(of.Holder, after.Holder), quota: after.Quota + 1}
	if from.holder != after.Holder {
		from.quota = 0
	}
	last := after
	s.holders.meters.Ascend(from, func(t *meter) bool {
		switch {
		case of.Holder != "" && t.holder != of.Holder:
			return false
		case len(views) >= limit || p.spent():
			next = last
			return false
		}
		p.work++
		last = UsageMark{Holder: t.holder, Quota: t.quota}
		q, ok := s.quotas.byNumber.Get(t.quota)
		if ok && (of.Quota == "" || q.name == of.Quota) && q.rule.Policy.Meters(t.holder) && (of.Shown == nil || of.Shown(t.holder)) {
			views = append(views, s.viewUsage(t, q, p))
		}
		return true
	})
	return views, next
}

// reservations is a page of meters with the amounts reserved by the last holder, whose leases are read once for all
// quotas.
type reservations struct {
	paging
	holder string
	known  bool
	held   map[heldIn]int64
}

// heldIn is a quota's window.
type heldIn struct {
	quota  uint32
	window int64
}

// of returns the amount that a holder has reserved in a window of a quota.
func (p *reservations) of(s *State, holder string, in heldIn) int64 {
	if !p.known || p.holder != holder {
		p.holder, p.known, p.held = holder, true, map[heldIn]int64{}
		s.eachLeaseOf(holder, 0, func(l *lease) bool {
			p.work += len(l.items)
			for i := range l.items {
				if it := &l.items[i]; l.deadline > p.at.Now && !s.gone(l) {
					p.held[heldIn{it.quota, it.window}] += it.held
				}
			}
			return true
		})
	}
	return p.held[in]
}

// EachMeter calls fn with the counters of each holder and quota, in the order of holders.
func (s *State) EachMeter(fn func(holder, quota string, counts *MeterCounts)) {
	s.holders.meters.Scan(func(t *meter) bool {
		if q, ok := s.quotas.byNumber.Get(t.quota); ok && q.rule.Policy.Meters(t.holder) {
			fn(t.holder, q.name, &t.MeterCounts)
		}
		return true
	})
}

func (s *State) viewUsage(t *meter, q *quota, p *reservations) UsageView {
	at := p.at
	p.work += 1 + len(q.ledger.Log)/8
	g := q.ledgerAt(at)
	v := UsageView{Holder: t.holder, Quota: q.name, Used: -1, MeterCounts: t.MeterCounts}
	v.Class, _ = s.rules.of(t.holder)
	v.Reserved = p.of(s, t.holder, heldIn{q.number, g.Window})
	if q.rule.Kind != ledger.KindWindow {
		return v
	}
	v.Used = 0
	if t.window == g.Window {
		v.Used = t.used.Since(g.Cutoff)
	}
	v.Share = q.shareOf(q.rule.Policy.Shares.Holder(t.holder))
	if v.Share > 0 {
		kept := keptOf(v.Share, v.Used, q.partLeft(&g, at))
		v.Lent, v.Borrowed = max(v.Share-v.Used-kept, 0), max(v.Used-v.Share, 0)
	}
	return v
}

func encodeMeter(t *meter) *logpb.SnapshotMeter {
	encoded := &logpb.SnapshotMeter{
		Holder: t.holder, Quota: t.quota, Window: t.window, Used: t.used.Amount, Answered: t.Answered, Limited: t.Limited, Waits: t.Waits,
		WaitedNs: t.WaitedNs, Granted: t.Granted, Consumed: t.Consumed, Returned: t.Returned, Overrun: t.Overrun,
		UsedEnds: ledger.EncodeEnds(nil, 0, &t.used),
	}
	for _, d := range t.Denials {
		encoded.Denials = append(encoded.Denials, &logpb.SnapshotDenial{Reason: d.Reason, Times: d.Times})
	}
	return encoded
}

func decodeMeter(encoded *logpb.SnapshotMeter, generation uint64) *meter {
	t := &meter{
		Made: cow.In(generation), holder: encoded.Holder, quota: encoded.Quota, window: encoded.Window, used: ledger.Usage{Amount: encoded.Used},
		MeterCounts: MeterCounts{
			Answered: encoded.Answered, Limited: encoded.Limited, Waits: encoded.Waits, WaitedNs: encoded.WaitedNs,
			Granted: encoded.Granted, Consumed: encoded.Consumed, Returned: encoded.Returned, Overrun: encoded.Overrun,
		},
	}
	for _, e := range encoded.UsedEnds {
		t.used.List(e.EndNs, e.Amount)
	}
	for _, d := range encoded.Denials {
		t.Denials = append(t.Denials, Denial{Reason: d.Reason, Times: d.Times})
	}
	return t
}

// metered returns a holder's meter for update, advanced to the present window; nil: none.
func (hs *holderTables) metered(q *quota, name string) *meter {
	t := hs.meterOf(q, name)
	if t == nil {
		return nil
	}
	was := t.size()
	if t.window != q.ledger.Window {
		t.window, t.used = q.ledger.Window, ledger.Usage{}
	}
	t.used.Drop(q.ledger.Cutoff)
	if !q.ledger.Lists(&q.rule) {
		t.used.Ends = nil
	}
	hs.resized(t, was)
	return t
}
