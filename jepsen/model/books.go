package model

import (
	"container/heap"
	"math/big"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// quota is an account. It counts charges twice: surely holds the charges that the rules demand, to the nanosecond. perhaps holds all that
// may still count: the end of an exposure is rounded up, by a hundredth of a period at most. Grants are judged by surely, refusals by
// perhaps.
type quota struct {
	number     int
	name       string
	definition *logpb.Quota
	rule       rule
	parent     *quota
	children   int
	deleted    bool
	// leases and waiting count its leases and waiters.
	leases, waiting int
	// held is the sum that live leases hold in the window to which new holds belong; window is that window.
	held            int64
	window          int64
	surely, perhaps tally
	recent          []*charge       // of a window: recent charges
	surelyIn        map[int64]int64 // by calendar window: amounts that surely reached the provider in it
	highest         int64           // the highest usable so far
	cap             reportedCap
	others          others
	total           int64 // of a rate: all consumption since levelOvertaken
	reset           reset
	drawn           *big.Int // from the burst, in amounts x period
	drawnAt         int64
	draws           []*charge // later charges to the burst, in the order of their consumption
	closedUntil     int64
	closer          string
	closerSince     int64
	// over is the override of its limit; nil: none.
	over *override
	// reopened is when its last cooldown ended, ramped the sum granted since.
	reopened, ramped int64
	// usages are by holder; unsure: some may be older than these books' policy.
	usages map[string]*usage
	unsure bool
	// granted is the most that each class was granted in the present window, wanted when the class last asked.
	granted, wanted [3]int64
	// pace is of a rate with shares; ageing is the shortest ageing time so far, 0: none.
	pace   pacing
	ageing int64
}

// reportedCap is a total to which a report lowered one window, or a rate.
type reportedCap struct {
	total  int64
	window int64
	// until is its earliest end, latest its latest one: by the early view; of a rate by cluster time.
	until, latest int64
	caller        string
	is            bool
	over          bool // it may have ended
}

// charge is an amount that counts until the end of its exposure and, for a rate, a period longer.
type charge struct {
	quota  *quota
	amount int64
	// end is the end of its exposure, latest the latest possible end (a lease may end late); never: unknown yet.
	end, latest int64
	began       int64 // when it was consumed (cluster time)
	// before and beforeLeast bound the sum that counted when it was consumed; answered: a report of it may say something about a rate.
	before, beforeLeast int64
	answered            bool
	// total is the rate's whole consumption up to then; counted: since levelOvertaken.
	total   int64
	counted bool
	// surely and perhaps are its places in the quota's tallies.
	surely, perhaps *mark
	// window is the calendar window in which it surely reaches the provider, if sure.
	window int64
	sure   bool
	class  int32
}

// mark is a charge's place in a tally.
type mark struct {
	until int64
	in    bool
}

// tally is a sum of charges, each until its own time.
type tally struct {
	sum    int64
	order  marks
	cutoff int64
}

type marked struct {
	until int64
	c     *charge
	m     *mark
}

// marks is a heap by time; it implements heap.Interface.
type marks []marked

func (m *marks) Len() int           { return len(*m) }
func (m *marks) Less(i, j int) bool { return (*m)[i].until < (*m)[j].until }
func (m *marks) Swap(i, j int)      { (*m)[i], (*m)[j] = (*m)[j], (*m)[i] }

// Push implements heap.Interface.
func (m *marks) Push(x any) { *m = append(*m, x.(marked)) } //nolint:errcheck // only add calls it

// Pop implements heap.Interface.
func (m *marks) Pop() any {
	last := len(*m) - 1
	x := (*m)[last]
	(*m)[last] = marked{}
	*m = (*m)[:last]
	return x
}

// put enters a charge, or moves it; a charge that has stopped counting stays out.
func (t *tally) put(c *charge, m *mark, until int64, enter bool) {
	if !enter && (!m.in || m.until == until) {
		return
	}
	if enter {
		if until < t.cutoff {
			return
		}
		t.sum += c.amount
	}
	m.in, m.until = true, until
	heap.Push(&t.order, marked{until: until, c: c, m: m})
}

// drop drops the charges that stopped counting before a cutoff.
func (t *tally) drop(cutoff int64) {
	t.cutoff = max(t.cutoff, cutoff)
	for len(t.order) > 0 && t.order[0].until < t.cutoff {
		first := t.order[0]
		heap.Pop(&t.order)
		if first.m.in && first.m.until == first.until {
			first.m.in = false
			t.sum -= first.c.amount
		}
	}
}

// counts returns until when a charge counts if its exposure ends at end, in the time of the cutoff.
func (q *quota) counts(end int64) int64 {
	if end == never || q.rule.kind != windowKind || q.rule.anchored {
		return end
	}
	_, end = q.rule.windowAt(plus(end, q.rule.skew))
	return end - 1
}

// countsPerhaps is the same, with the most that rounding may add.
func (q *quota) countsPerhaps(latest int64) int64 {
	if latest == never || q.rule.kind == slotsKind || q.rule.kind == windowKind && !q.rule.anchored {
		return q.counts(latest)
	}
	return plus(latest, q.rule.period/rounding+int64(1_000_000))
}

// enter enters a charge.
func (q *quota) enter(c *charge, now int64) {
	c.quota, c.surely, c.perhaps = q, new(mark), new(mark)
	q.enterRecent(c, now)
	if c.class == 0 && q.paced() {
		q.pace.critical = append(slices.DeleteFunc(q.pace.critical, func(c *charge) bool { return !c.perhaps.in }), c)
	}
	q.surely.put(c, c.surely, q.counts(c.end), true)
	q.perhaps.put(c, c.perhaps, q.countsPerhaps(c.latest), true)
}

// move gives a charge another end.
func (c *charge) move(end, latest int64) {
	if c.quota.deleted {
		return
	}
	c.end, c.latest = end, latest
	c.quota.surely.put(c, c.surely, c.quota.counts(end), false)
	c.quota.perhaps.put(c, c.perhaps, c.quota.countsPerhaps(latest), false)
}

// lower subtracts an amount from a charge.
func (c *charge) lower(by int64) {
	if c.surely.in {
		c.quota.surely.sum -= by
	}
	if c.perhaps.in {
		c.quota.perhaps.sum -= by
	}
	if c.sure && c.quota.surelyIn[c.window] != 0 {
		c.quota.surelyIn[c.window] -= by
	}
	c.amount -= by
}

// advance advances a quota to the present time.
func (q *quota) advance(clock fsm.Clock) {
	r := &q.rule
	switch {
	case r.kind == poolKind:
	case r.kind == rateKind:
		q.drop(clock.Now - r.period)
		if q.cap.is && clock.Now >= q.cap.until {
			q.cap = reportedCap{}
		}
	case r.kind == slotsKind:
		q.drop(clock.Now + 1)
	case r.anchored:
		q.advanceAnchored(clock)
	default:
		opening, _ := r.windowAt(clock.WallEarly - r.skew)
		q.drop(opening)
		if q.cap.is && q.cap.window <= opening {
			q.cap = reportedCap{}
		}
		q.uncap(clock)
	}
}

// uncap ends a cap whose time is over: a single caller's report lasts no longer.
func (q *quota) uncap(clock fsm.Clock) {
	if q.cap.is && clock.WallEarly >= q.cap.latest {
		q.cap = reportedCap{}
	}
	q.cap.over = q.cap.is && clock.WallEarly >= q.cap.until
}

// rolls says whether the window of the current holds has closed by the late view, and no event has said so yet. A view that has fallen
// since may have been past it: the first command that finds it closed counts.
func (q *quota) rolls(clock fsm.Clock) bool {
	return q.rule.kind == windowKind && !q.rule.anchored && q.takesHolds(clock) > q.window
}

// takesHolds is the calendar window, by its end, to which current holds belong: the one of the late view plus the skew, by which the
// provider's clock may be ahead.
func (q *quota) takesHolds(clock fsm.Clock) int64 {
	_, end := q.rule.windowAt(clock.WallLate + q.rule.skew)
	return end
}

func (q *quota) drop(cutoff int64) {
	q.surely.drop(cutoff)
	q.perhaps.drop(cutoff)
}

// capped says whether a report surely lowers the current window.
func (q *quota) capped() bool { return q.cap.is && !q.cap.over && q.cap.window == q.window }

// allowed is the most that may be held and counted: usable, or less if a report lowered the current window.
func (q *quota) allowed() int64 {
	if q.capped() {
		return min(q.rule.usable, q.cap.total)
	}
	return q.rule.usable
}

// cooling says whether a cooldown has closed the quota.
func (q *quota) cooling(now int64) bool { return q.closedUntil > now }

// path is a quota and its ancestors.
func (q *quota) path() []*quota {
	var path []*quota
	for ; q != nil && !slices.Contains(path, q); q = q.parent {
		path = append(path, q)
	}
	return path
}

// need is the amount that a command needs of a quota: the sum over its items, those of descendants included.
type need struct {
	quota  *quota
	amount int64
	// own is the amount of one item of this very quota.
	own int64
}

// needs computes the amounts that items need; ok is false if a quota does not exist.
func (j *Judge) needs(items []*logpb.Item) (needs []need, ok bool) {
	for _, item := range items {
		q := j.quotas[item.Quota]
		if q == nil {
			return nil, false
		}
		for _, one := range j.drawsOn(q, item.Amount) {
			one.quota.advance(j.clock)
			i := slices.IndexFunc(needs, func(n need) bool { return n.quota == one.quota })
			if i < 0 {
				i = len(needs)
				needs = append(needs, need{quota: one.quota})
			}
			needs[i].amount = plus(needs[i].amount, one.amount)
			needs[i].own = max(needs[i].own, one.own)
		}
	}
	return needs, true
}

// define applies definitions of quotas.
func (j *Judge) define(definitions []*logpb.Quota) {
	var created []*quota
	for _, definition := range definitions {
		q := j.quotas[definition.Name]
		if q == nil {
			j.lastQuota++
			q = &quota{number: j.lastQuota, name: definition.Name, surelyIn: map[int64]int64{}, drawn: new(big.Int), usages: map[string]*usage{}}
			j.quotas[definition.Name] = q
			created = append(created, q)
		}
		j.setRule(q, definition)
	}
	for _, q := range created {
		if q.rule.kind == windowKind && !q.rule.anchored {
			q.window = q.takesHolds(j.clock)
		}
		q.reset.since = j.clock.WallEarly
	}
	moved := false
	for _, definition := range definitions {
		q, parent := j.quotas[definition.Name], j.quotas[definition.Parent]
		if q.parent == parent {
			continue
		}
		if q.parent != nil {
			q.parent.children--
		}
		if parent != nil {
			parent.children++
		}
		q.parent, moved = parent, true
	}
	pooled := slices.ContainsFunc(definitions, func(definition *logpb.Quota) bool { return definition.GetPool() != nil })
	if moved || pooled {
		j.regroup()
	}
}

// setRule gives a quota a definition, under its override if it has one.
func (j *Judge) setRule(q *quota, definition *logpb.Quota) {
	if q.definition != nil {
		q.advance(j.clock)
	}
	if !proto.Equal(q.definition.GetPolicy(), definition.Policy) {
		q.usages, q.unsure = map[string]*usage{}, q.definition != nil
	}
	before, was := q.rule, q.definition != nil && q.paced()
	if ageing := definition.GetPolicy().GetAgeingNs(); ageing > 0 && (q.ageing == 0 || ageing < q.ageing) {
		q.ageing = ageing
	}
	q.definition, q.rule = definition, ruleOf(under(definition, q.over))
	q.rule.shift = j.clock.Shift
	q.highest = max(q.highest, q.rule.usable)
	q.redrawn(&before, j.clock.Now)
	q.advance(j.clock)
	j.repaced(q, was, &before)
}

// redrawn converts the amount drawn from the burst to another rule. A new burst begins full or, equally correct, empty: no refusal for a
// burst is judged by it.
func (q *quota) redrawn(before *rule, now int64) {
	if before.burst == q.rule.burst && before.usable == q.rule.usable {
		return
	}
	if before.burst == 0 || q.rule.burst == 0 {
		q.drawn.SetInt64(0)
	} else {
		after := q.rule
		q.rule = *before
		q.drawn = q.level(now, q.draws)
		q.rule = after
	}
	q.draws, q.drawnAt = nil, now
}

// draw draws a new charge from the burst and says whether the burst covers it. No interval d may see more than burst + d x usable / period,
// which is a bucket that drains at that rate. Amounts that a Settle takes off a charge were never drawn. A charge that is entered later
// than it was consumed counts from then on: these books permit more than the rule.
func (q *quota) draw(now int64, c *charge) bool {
	if q.rule.burst == 0 {
		return true
	}
	old := 0
	for old < len(q.draws) && q.draws[old].began < now-2*q.rule.period {
		old++
	}
	if old > 0 {
		q.drawn = q.level(q.draws[old-1].began, q.draws[:old])
		q.drawnAt, q.draws = q.draws[old-1].began, q.draws[old:]
	}
	had := q.mayDraw(now, c)
	q.draws = append(q.draws, c)
	return had
}

// mayDraw says whether the burst covers a charge.
func (q *quota) mayDraw(now int64, c *charge) bool {
	if q.rule.burst == 0 {
		return true
	}
	most := new(big.Int).Mul(big.NewInt(q.rule.burst), big.NewInt(q.rule.period))
	return q.level(now, append(slices.Clip(q.draws), c)).Cmp(most) <= 0
}

// level is the amount drawn from the burst at a moment, with some charges.
func (q *quota) level(now int64, draws []*charge) *big.Int {
	level, at := new(big.Int).Set(q.drawn), q.drawnAt
	drain := func(until int64) {
		level.Sub(level, new(big.Int).Mul(big.NewInt(until-at), big.NewInt(q.rule.usable)))
		if level.Sign() < 0 {
			level.SetInt64(0)
		}
		at = until
	}
	for _, c := range draws {
		drain(c.began)
		level.Add(level, new(big.Int).Mul(big.NewInt(c.amount), big.NewInt(q.rule.period)))
	}
	drain(now)
	return level
}
