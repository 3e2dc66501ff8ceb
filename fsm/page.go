package fsm

import (
	"math"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/task"
)

// pageWork bounds the cost of one page of a list, whatever it finds: the records that it reads, with the items and
// charges of those shown. A page that reaches the bound names the next position, even if it is empty.
const pageWork = 8192

// paging counts the work of one page.
type paging struct {
	at   Clock
	work int
	// ledgers are the quotas' ledgers at that clock, without their lists, each advanced once.
	ledgers map[uint32]*ledger.Ledger
}

// spent reports whether the page has used up its work.
func (p *paging) spent() bool { return p.work >= pageWork }

// ledgerOf returns a quota's ledger at the page's clock, without its lists.
func (p *paging) ledgerOf(q *quota) *ledger.Ledger {
	if known := p.ledgers[q.number]; known != nil {
		return known
	}
	if p.ledgers == nil {
		p.ledgers = map[uint32]*ledger.Ledger{}
	}
	p.work += 1 + len(q.ledger.Log)/8
	g := q.ledgerAt(p.at)
	g.Log, g.Past, g.Draws, g.Loose, g.Used = nil, nil, nil, nil, [ledger.Classes]ledger.Usage{}
	p.ledgers[q.number] = &g
	return &g
}

// LeaseFilter selects leases.
type LeaseFilter struct {
	// Holder selects a holder's leases, Quota those with an item of a quota. Empty: any.
	Holder, Quota string
	// Shown reports whether a holder's leases are shown; nil: all.
	Shown func(holder string) bool
}

// LeasePage returns up to limit live leases by id, above the id after. next is the value of after for the next page, 0
// after the last lease. A page ends early, and may be empty, when finding more costs too much.
func (s *State) LeasePage(of LeaseFilter, after uint64, limit int, at Clock) (views []LeaseView, next uint64) {
	p := &paging{at: at}
	last := after
	show := func(l *lease) bool {
		if l.id <= after {
			return true
		}
		if len(views) >= limit || p.spent() {
			next = last
			return false
		}
		p.work++
		last = l.id
		if l.deadline > at.Now && !s.gone(l) && (of.Quota == "" || s.hasItem(l, of.Quota)) && (of.Shown == nil || of.Shown(l.holder)) {
			views = append(views, s.viewLease(l, p))
		}
		return true
	}
	if of.Holder != "" {
		s.eachLeaseOf(of.Holder, after, show)
		return views, next
	}
	s.leases.Ascend(after, func(_ uint64, l *lease) bool { return show(l) })
	return views, next
}

func (s *State) hasItem(l *lease, name string) bool {
	for i := range l.items {
		if q, ok := s.quotas.byNumber.Get(l.items[i].quota); ok && !l.items[i].ancestor && q.name == name {
			return true
		}
	}
	return false
}

func (s *State) viewLease(l *lease, p *paging) LeaseView {
	v := LeaseView{
		ID: l.id, Fence: l.fence, Holder: l.holder, Class: l.class,
		Left: l.deadline - p.at.Now, Operations: len(l.records()),
	}
	for i := range l.items {
		it := &l.items[i]
		q, ok := s.quotas.byNumber.Get(it.quota)
		if !ok || it.ancestor || it.held == 0 {
			continue
		}
		p.work++
		if it.window == p.ledgerOf(q).Window {
			v.Held = append(v.Held, &logpb.GrantedItem{
				Quota: q.name, Amount: it.held, UntilNs: itemEnd(q, it, l.deadline, p.at),
			})
		}
	}
	for _, o := range l.records() {
		p.work += len(o.charges)
		v.Consumed = s.addConsumed(v.Consumed, o, p)
	}
	return v
}

// addConsumed adds the charges of an operation that still count, by quota.
func (s *State) addConsumed(sums []*logpb.GrantedItem, o *operation, p *paging) []*logpb.GrantedItem {
	for i := range o.charges {
		c := &o.charges[i]
		q, ok := s.quotas.byNumber.Get(c.quota)
		if !ok || c.ancestor || c.amount == 0 || !p.ledgerOf(q).Counts(c.end) {
			continue
		}
		found := false
		for _, sum := range sums {
			if sum.Quota == q.name {
				sum.Amount += c.amount
				found = true
			}
		}
		if !found {
			sums = append(sums, &logpb.GrantedItem{Quota: q.name, Amount: c.amount, UntilNs: o.spendBy})
		}
	}
	return sums
}

// TaskPage returns up to limit tasks by name, above the name after. next is the value of after for the next page, empty
// after the last task. A page ends early, and may be empty, when finding more costs too much.
func (s *State) TaskPage(of task.Filter, after string, limit int, at Clock) (views []task.View, next string) {
	return s.tasks.Page(of, after, limit, pageWork, at.Now)
}

// Tasks returns up to limit tasks by name, above the name after, whatever the cost: for simulations and checks.
// Filters: the prefix of the name, the holder (empty: any) and the phase (unspecified: any).
func (s *State) Tasks(prefix, holder string, phase logpb.TaskPhase, after string, limit int, at Clock) []task.View {
	views, _ := s.tasks.Page(task.Filter{Prefix: prefix, Holder: holder, Phase: phase}, after, limit, math.MaxInt, at.Now)
	return views
}
