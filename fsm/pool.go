package fsm

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// A pool is several quotas of one kind, such as those of several keys, that a Reserve names as one. A pool counts
// nothing: when a Reserve is granted, one member is chosen, and the lease is of that member's quota. A waiter for a
// pool waits for all of its members, and takes the first that has room. docs/decisions/0035-pools.md has the reasons.

const (
	// maxPools bounds the pools of one Reserve, and maxPoolItems all items of a Reserve with a pool: each is judged per
	// member.
	maxPools     = 8
	maxPoolItems = 8
	// poolShares is how many items a waiting item of a pool counts for, including the shares of ancestors. It is the
	// most that a member may have, because members may change while it waits.
	poolShares = 1 + maxDepth
)

// noPool is the failure of a command that works on quotas but not on pools.
func noPool(q *quota, message string) *logpb.Failure {
	failure := effect.Invalid(fmt.Sprintf("pool %q %s", q.name, message), "name its members' quotas instead: quotad quota get lists them")
	failure.Quota = q.name
	return failure
}

// poolOf returns the name of a pool that has a quota as member, the first by number; empty: none.
func (qs *quotaTable) poolOf(q *quota) (name string) {
	qs.byNumber.Scan(func(_ uint32, p *quota) bool {
		if slices.ContainsFunc(p.definition.GetPool().GetMembers(), func(member *logpb.PoolMember) bool { return member.Quota == q.name }) {
			name = p.name
		}
		return name == ""
	})
	return name
}

// isPool reports whether a quota exists and is a pool.
func (qs *quotaTable) isPool(number uint32) bool {
	q, ok := qs.byNumber.Get(number)
	return ok && q.rule.Kind == ledger.KindPool
}

// onPool reports whether the needs are of a Reserve that names a pool. Such needs include all quotas that it may draw
// on.
func onPool(needs []need) bool { return slices.ContainsFunc(needs, need.ofPool) }

// ofPool reports whether a need is on a pool.
func (n need) ofPool() bool { return n.quota.rule.Kind == ledger.KindPool }

// choicesOf returns the members on which a Reserve with these needs may draw; none if it names no pool.
func choicesOf(needs []need) []choice {
	if i := slices.IndexFunc(needs, need.ofPool); i >= 0 {
		return needs[i].choices
	}
	return nil
}

// memberNamed returns a pool's member by name, nil if there is none.
func (q *quota) memberNamed(name string) *logpb.PoolMember {
	for _, member := range q.definition.GetPool().GetMembers() {
		if member.Name == name {
			return member
		}
	}
	return nil
}

// choice is one member on which a Reserve of pools may draw.
type choice struct {
	member string
	needs  []need
	// room is the smallest available share of usable among the member's quotas that are requested, in millionths.
	room int64
	// last says that the pool is sticky and the holder drew on this member last.
	last bool
}

// commonMembers returns the names of the members that all pools of a Reserve share, in the order of the first pool.
func (j *judge) commonMembers(req *logpb.Reserve) ([]string, *logpb.Failure) {
	var names []string
	var first *quota
	pools := 0
	for _, item := range req.Items {
		switch q := j.quotas.get(j.quotas.numberOf(item.Quota)); {
		case q == nil:
			return nil, unknownQuota(item.Quota)
		case q.rule.Kind != ledger.KindPool:
			continue
		case first == nil:
			first = q
			for _, member := range q.definition.GetPool().Members {
				names = append(names, member.Name)
			}
		default:
			names = slices.DeleteFunc(names, func(name string) bool { return q.memberNamed(name) == nil })
		}
		if pools++; pools > maxPools {
			return nil, effect.Invalid(fmt.Sprintf("more than %d pools in one Reserve", maxPools), "reserve some apart")
		}
	}
	if j.featureLevel >= levels.PoolItems && len(req.Items) > maxPoolItems {
		return nil, effect.Invalid(fmt.Sprintf("%d items with a pool among them; at most %d", len(req.Items), maxPoolItems),
			"reserve the others apart")
	}
	if len(names) == 0 {
		return nil, effect.Invalid(fmt.Sprintf("pool %q and the other pools of this Reserve have no member in common", first.name),
			"all pools of one Reserve draw on the member of one name: reserve them apart, or name their members alike")
	}
	return names, nil
}

// choices returns the members on which a Reserve of pools may draw, in the order in which they are tried. In a sticky
// pool the member that the holder drew on last comes first; then members follow by room, and equal ones in their order.
func (j *judge) choices(req *logpb.Reserve) ([]choice, *logpb.Failure) {
	names, failure := j.commonMembers(req)
	if failure != nil {
		return nil, failure
	}
	all := make([]choice, 0, len(names))
	for _, name := range names {
		c, failure := j.choiceOf(req, name)
		if failure != nil {
			return nil, failure
		}
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b choice) int {
		if a.last != b.last {
			if a.last {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.room, a.room)
	})
	return all, nil
}

// choiceOf computes what a Reserve needs of one member.
func (j *judge) choiceOf(req *logpb.Reserve, name string) (choice, *logpb.Failure) {
	c := choice{member: name, room: fixed.Million, needs: make([]need, 0, len(req.Items))}
	for _, item := range req.Items {
		q := j.quotas.get(j.quotas.numberOf(item.Quota))
		var failure *logpb.Failure
		if q.rule.Kind == ledger.KindPool {
			p := q
			q = j.quotas.editNow(j.quotas.numberOf(p.memberNamed(name).Quota))
			c.room = min(c.room, q.room())
			c.last = c.last || p.definition.GetPool().Sticky && j.holders.statsOf(req.Holder, p).member == q.number
		}
		if slices.ContainsFunc(c.needs, func(n need) bool { return n.quota.number == q.number && n.own > 0 }) {
			return c, effect.Invalid(fmt.Sprintf("quota %q is asked for twice, by itself and as member %q of a pool", q.name, name),
				"name the pool, and its member")
		}
		if c.needs, failure = j.addNeed(c.needs, q, item); failure != nil {
			return c, failure
		}
	}
	return c, nil
}

// room returns the available share of usable, in millionths.
func (q *quota) room() int64 {
	if q.rule.Usable == 0 {
		return 0
	}
	return fixed.MulDivFloor(max(q.ledger.Available(&q.rule), 0), fixed.Million, q.rule.Usable)
}

// needsOfPools returns what a Reserve of pools may need, by ascending quota number: of each quota the most that any
// choice needs, and the pools themselves, of which the first has the choices.
func (j *judge) needsOfPools(req *logpb.Reserve) ([]need, *logpb.Failure) {
	all, failure := j.choices(req)
	if failure != nil {
		return nil, failure
	}
	var wide []need
	for _, item := range req.Items {
		if p := j.quotas.editNow(j.quotas.numberOf(item.Quota)); p.rule.Kind == ledger.KindPool {
			wide = append(wide, need{quota: p})
		}
	}
	for _, c := range all {
		wide = append(wide, c.needs...)
	}
	slices.SortFunc(wide, func(a, b need) int { return cmp.Compare(a.quota.number, b.quota.number) })
	last := 0
	for _, n := range wide[1:] {
		if n.quota.number == wide[last].quota.number {
			wide[last].amount, wide[last].own = max(wide[last].amount, n.amount), max(wide[last].own, n.own)
			continue
		}
		last++
		wide[last] = n
	}
	wide = wide[:last+1]
	wide[slices.IndexFunc(wide, need.ofPool)].choices = all
	return wide, nil
}

// resolveMember replaces the pools of a Reserve by the quotas of the member that it pins. Without a pin it returns the
// Reserve.
func (j *judge) resolveMember(req *logpb.Reserve) (*logpb.Reserve, *logpb.Failure) {
	if req.Member == "" {
		return req, nil
	}
	pooled := false
	for _, item := range req.Items {
		p := j.quotas.named(item.Quota)
		switch {
		case p == nil:
			return nil, unknownQuota(item.Quota)
		case p.rule.Kind != ledger.KindPool:
			continue
		case p.memberNamed(req.Member) == nil:
			return nil, effect.Invalid(fmt.Sprintf("pool %q has no member %q", item.Quota, req.Member), "quotad quota get lists its members")
		}
		pooled = true
	}
	if !pooled {
		return nil, effect.Invalid(fmt.Sprintf("member %q is named, and no pool", req.Member), "leave the member out, or name a pool")
	}
	if _, failure := j.choiceOf(req, req.Member); failure != nil {
		return nil, failure
	}
	return j.drawOn(req, req.Member), nil
}

// drawOn returns a Reserve of one member's quotas instead of its pools.
func (j *judge) drawOn(req *logpb.Reserve, name string) *logpb.Reserve {
	resolved := proto.CloneOf(req)
	resolved.Member = name
	for _, item := range resolved.Items {
		if p := j.quotas.named(item.Quota); p.rule.Kind == ledger.KindPool {
			item.Pool, item.Quota = p.name, p.memberNamed(name).Quota
		}
	}
	return resolved
}

// nameMembers records in a grant which members of pools its items are.
func nameMembers(req *logpb.Reserve, granted *logpb.Granted) {
	if req.Member == "" {
		return
	}
	for i, item := range granted.GetItems() {
		if item.Pool = req.Items[i].Pool; item.Pool != "" {
			item.Member = req.Member
		}
	}
}

// milder returns which of two members' obstacles to report: that of the member that opens first, else of the member
// that allows more. Before levels.FirstToOpen it compared retry times, which are spread.
func (j *judge) milder(a, b hindrance) hindrance {
	usable := func(r *logpb.Refusal) int64 { return j.quotas.named(r.Quota).rule.Usable }
	opens := func(h hindrance) int64 {
		if j.featureLevel < levels.FirstToOpen {
			return h.refusal.RetryAtNs
		}
		return h.until
	}
	switch {
	case a.refusal == nil:
		return b
	case b.refusal == nil, opens(a) != 0 && opens(b) == 0:
		return a
	case opens(a) == 0 && opens(b) != 0, opens(b) != 0 && opens(b) < opens(a):
		return b
	case opens(b) == 0 && usable(b.refusal) > usable(a.refusal):
		return b
	}
	return a
}

// rejectChoices refuses a Reserve of pools that no member can ever grant under the present configuration; nil: one can.
func (rq *request) rejectChoices(needs []need) *logpb.Refusal {
	var mildest hindrance
	for _, c := range choicesOf(needs) {
		rejected := rq.reject(c.needs)
		if rejected == nil {
			return nil
		}
		mildest = rq.milder(mildest, hindrance{refusal: rejected, until: rejected.RetryAtNs})
	}
	return mildest.refusal
}

// judgeChoice returns what prevents a grant of one member now; no refusal: nothing.
func (rq *request) judgeChoice(c choice) hindrance {
	if rejected := rq.reject(c.needs); rejected != nil {
		return hindrance{refusal: rejected, until: rejected.RetryAtNs}
	}
	return rq.hindrance(c.needs)
}

// judgeChoices returns the first member that can be granted now, or what prevents a grant of all members.
func (rq *request) judgeChoices(needs []need) (free choice, refusal *logpb.Refusal) {
	var mildest hindrance
	for _, c := range choicesOf(needs) {
		h := rq.judgeChoice(c)
		if h.refusal == nil {
			return c, nil
		}
		mildest = rq.milder(mildest, h)
	}
	return choice{}, mildest.refusal
}

// noMemberBefore returns a time before which no member can be granted, even if amounts return early.
func (rq *request) noMemberBefore(needs []need) (first int64) {
	first = math.MaxInt64
	for _, c := range choicesOf(needs) {
		if rq.reject(c.needs) == nil {
			first = min(first, rq.certainlyNotBefore(c.needs))
		}
	}
	return first
}

// grantChoice grants a Reserve of pools a lease of one member.
func (m *Machine) grantChoice(rq *request, c choice, ticket, account uint64) *logpb.Result {
	req := rq.req
	virtualTime := m.holders.use(req.Holder).virtualTime
	resolved := m.judge.drawOn(req, c.member)
	result := m.grant(&request{judge: rq.judge, req: resolved, priority: rq.priority}, c.needs, ticket, account)
	for _, item := range resolved.Items {
		if item.Pool == "" {
			continue
		}
		p := m.quotas.edit(m.quotas.numberOf(item.Pool))
		recordServed([]need{{quota: p}}, rq.rank, virtualTime)
		if p.definition.GetPool().Sticky && (m.holders.hasStats(req.Holder, p) || m.holders.mayRemember(req.Holder)) {
			m.holders.editStats(req.Holder, p).member = m.quotas.numberOf(item.Quota)
		}
	}
	return result
}

// tryChoices grants a waiter for pools the first member that has room. If none has, all members that are short block
// the waiters behind it. Its amounts are set aside at the first member only: any may serve it first, and it needs one.
func (m *Machine) tryChoices(w *waiter, at uint32, p *pass) tried {
	all, failure := m.judge.choices(w.req)
	if failure != nil {
		m.endWait(w, refusalFrom(failure))
		return left
	}
	rq := m.judge.requestOf(w)
	var saving *choice
	var never hindrance
	var short []uint32
	outcome, possible := waitSetBlocked, false
	for i := range all {
		c := &all[i]
		if rejected := rq.reject(c.needs); rejected != nil {
			never = m.judge.milder(never, hindrance{refusal: rejected, until: rejected.RetryAtNs})
			continue
		}
		possible = true
		if slices.ContainsFunc(c.needs, func(n need) bool { return p.blocked[n.quota.number] || m.judge.closedNow(n.quota.number) }) {
			continue
		}
		if p.passOver(&rq, c.needs, at) != 0 {
			outcome = passedOver // another waiter of the wait set may be eligible there
			continue
		}
		lacking := p.shortOf(w, &rq, c.needs, at)
		if len(lacking) == 0 {
			m.leaveForGrant(w, c.needs)
			m.requests.Complete(requestHost{m}, w.from, w.ticket, m.grantChoice(&rq, *c, w.ticket, w.account))
			return left
		}
		short = append(short, lacking...)
		if saving == nil {
			saving = c
		}
	}
	if !possible {
		m.endWait(w, never.refusal)
		return left
	}
	if saving != nil {
		p.setAside(w, saving.needs, at, short)
	}
	if never.refusal != nil {
		return passedOver // a waiter with a smaller request may fit where this one never does
	}
	return outcome
}

// askedBy returns the numbers of the quotas that a Reserve requests, in ascending order: pools, and other quotas with
// their ancestors.
func (qs *quotaTable) askedBy(req *logpb.Reserve) ([]uint32, error) {
	var numbers []uint32
	for _, item := range req.Items {
		q := qs.named(item.Quota)
		if q == nil {
			return nil, fmt.Errorf("a waiter needs quota %q, which does not exist", item.Quota)
		}
		numbers = qs.insertAncestors(numbers, q)
	}
	return numbers, nil
}

// insertAncestors inserts the missing numbers of a quota and its ancestors.
func (qs *quotaTable) insertAncestors(numbers []uint32, q *quota) []uint32 {
	for depth := 0; q != nil && depth <= maxDepth; depth++ {
		if i, found := slices.BinarySearch(numbers, q.number); !found {
			numbers = slices.Insert(numbers, i, q.number)
		}
		q, _ = qs.byNumber.Get(q.parent)
	}
	return numbers
}

// drawnOn returns the numbers of all quotas on which a request may draw: the requested ones, and the members of pools
// with their ancestors.
func (qs *quotaTable) drawnOn(asked []uint32) []uint32 {
	all := asked
	for _, number := range asked {
		if !qs.isPool(number) {
			continue
		}
		p, _ := qs.byNumber.Get(number)
		if len(all) == len(asked) {
			all = slices.Clone(asked)
		}
		for _, member := range p.definition.GetPool().Members {
			all = qs.insertAncestors(all, qs.named(member.Quota))
		}
	}
	return all
}
