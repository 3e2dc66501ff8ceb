package model

import (
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// Policies are judged from one side: each grant must have been permissible. Where their rules round, or use amounts that these books do not
// keep (what a class returned), the more permissive reading counts.

const millionth = 1_000_000

// Where green and amber end, in millionths of usable (docs/policy/zones.md).
var zonesEnd = map[logpb.Zones][2]int64{
	logpb.Zones_ZONES_SMOOTH: {400_000, 150_000}, logpb.Zones_ZONES_STRICT: {200_000, 50_000},
}

const (
	// shrinking: thresholds shrink over the last tenth of a window.
	shrinking = 10
	// farthest is the distance of a holder's background calls where amber ends, redApart that of its standard calls in red.
	farthest = 2 * second
	redApart = second
	// remembered is for how long a holder's usage is surely remembered.
	remembered = 50 * minute
	// defaultClosed is for how long a breaker without a time is open, defaultQuiet how long after its last request a class loses its share.
	defaultClosed = minute
	defaultQuiet  = 15 * minute
)

// usage is the usage of one quota by one holder.
type usage struct {
	// granted is the time of its last grant; 0: none since the policy was defined.
	granted int64
	// refusals counts the provider's consecutive refusals, closedUntil is when its breaker lets one call try.
	refusals    int32
	closedUntil int64
	seen        int64
	// unsure says that its consecutive refusals may have begun before these books.
	unsure bool
}

// override is a temporary limit of a quota.
type override struct{ limit, until int64 }

// under is a definition with an override's limit.
func under(definition *logpb.Quota, o *override) *logpb.Quota {
	if o == nil {
		return definition
	}
	other := proto.CloneOf(definition)
	switch r := other.Rule.(type) {
	case *logpb.Quota_Window:
		r.Window.Limit = o.limit
	case *logpb.Quota_Rate:
		r.Rate.Limit = o.limit
	case *logpb.Quota_Slots:
		r.Slots.Limit = o.limit
	}
	return other
}

// usageOf returns a holder's usage of a quota.
func (j *Judge) usageOf(holder string, q *quota) *usage {
	u := q.usages[holder]
	switch {
	case u == nil:
		u = &usage{unsure: q.unsure}
		q.usages[holder] = u
	case j.clock.Now-u.seen > remembered:
		*u = usage{unsure: true} // it may have been forgotten
	}
	u.seen = j.clock.Now
	return u
}

// policies names the policy that should have withheld a grant; empty: none.
func (j *Judge) policies(ask *logpb.Reserve, class, rank int32, n need) (name, detail string) {
	q := n.quota
	policy := q.definition.GetPolicy()
	if policy == nil || policy.Observe {
		return "", ""
	}
	if u := j.usageOf(ask.Holder, q); policy.Breaker != nil && u.closedUntil > j.clock.Now {
		return "breaker", sprint("%s is closed for %s until %d, the provider refused it %d times in a row", q.name, ask.Holder, u.closedUntil,
			u.refusals)
	}
	if let, ramped := q.letsThrough(j.clock.Now); ramped && q.inRamp()+n.amount > let {
		return "ramp", sprint("%s began to reopen at %d, let %d through and may have let through %d, and %d more are granted", q.name, q.reopened,
			q.inRamp(), let, n.amount)
	}
	if why := j.zoned(ask, rank, q); why != "" {
		return "zone", why
	}
	if why := j.keptFor(class, rank, n); why != "" {
		return "share", why
	}
	return "", ""
}

// rank is the highest class in which a grant may have counted: background work that waited for its ageing time since its last grant counts
// as standard.
func (j *Judge) rank(holder string, class int32, needs []need) int32 {
	for _, n := range needs {
		ageing := n.quota.ageing
		if class == 2 && ageing > 0 && j.clock.Now-j.usageOf(holder, n.quota).granted >= ageing {
			return 1
		}
	}
	return class
}

// closing returns the time until a calendar window closes, and its length; ok is false for any other quota.
func (q *quota) closing(clock fsm.Clock) (left, length int64, ok bool) {
	if q.rule.kind != windowKind || q.rule.anchored {
		return 0, 0, false
	}
	start, end := q.rule.windowAt(q.window - 1)
	return max(end-q.rule.skew-clock.WallLate, 0), end - start, true
}

// zoned says why a zone should have withheld a grant; empty: it should not.
func (j *Judge) zoned(ask *logpb.Reserve, rank int32, q *quota) string {
	zones := q.definition.GetPolicy().GetZones()
	ends, ok := zonesEnd[zones]
	closes, length, known := q.closing(j.clock)
	if !ok || !known || q.rule.usable == 0 {
		return ""
	}
	scale := min(millionth, mulDiv(closes, shrinking*millionth, length))
	available := max(q.allowed()-q.held-q.surely.sum, 0)
	left := mulDiv(available, millionth, q.rule.usable)
	if zones == logpb.Zones_ZONES_STRICT && left > 0 && mulDiv(left, q.rule.usable, millionth) == available {
		left-- // strict zones begin above their thresholds
	}
	green, amber := mulDiv(ends[0], scale, millionth), mulDiv(ends[1], scale, millionth)
	if left >= green {
		return ""
	}
	word := sprint("of %s %d millionths are left, green is above %d and amber above %d", q.name, left, green, amber)
	red := left < amber
	switch {
	case rank == 0 && (zones != logpb.Zones_ZONES_STRICT || !red || ask.Emergency):
		return ""
	case zones == logpb.Zones_ZONES_STRICT, red && rank == 2:
		return word
	}
	apart := redApart
	if !red {
		apart = mulDiv(farthest, green-left, max(green-amber, 1))
		if rank == 1 {
			apart /= 2
		}
	}
	if last := j.usageOf(ask.Holder, q).granted; last != 0 && last+apart > j.clock.Now {
		return sprint("%s, and %s was granted something at %d", word, ask.Holder, last)
	}
	return ""
}

// keptFor says why a share should have withheld a grant: higher classes have a claim to the part of their shares that they surely have not
// used. The amount granted to a class in this window is the most that it can have used.
func (j *Judge) keptFor(class, rank int32, n need) string {
	q := n.quota
	shares := q.definition.GetPolicy().GetShares()
	if q.paced() && class == 0 {
		return j.capped(n)
	}
	if q.paced() {
		return j.lentTo(rank, n)
	}
	closes, length, known := q.closing(j.clock)
	if shares == nil || len(shares.Holders) > 0 || !known {
		return ""
	}
	quiet := shares.QuietNs
	if quiet == 0 {
		quiet = defaultQuiet
	}
	// An attempt may be recorded earlier than it was, by at most a sixteenth of the quiet time.
	if last := max(q.wanted[0], q.wanted[1]); class == 2 && (last == 0 || j.clock.Now-last >= quiet-quiet/16) {
		return ""
	}
	left := min(mulDiv(closes, millionth, length), millionth)
	var kept int64
	for class, part := range []int32{shares.CriticalPpm, shares.StandardPpm}[:rank] {
		share := mulDiv(q.rule.usable, int64(part), millionth)
		kept += max(min(share-q.granted[class], mulDiv(share, left, millionth)), 0)
	}
	if room := q.allowed() - q.held - q.surely.sum - n.amount; room < kept {
		return sprint("%d of %s are left with this grant to class %d, and %d are kept for those above", room, q.name, rank, kept)
	}
	return ""
}

// letsThrough returns the most that a quota may have granted by now while it reopens after a cooldown; ok is false if it does not reopen.
// It begins with a tenth of its rate, and the rate rises linearly; the first unit goes at once.
func (q *quota) letsThrough(now int64) (amount int64, ok bool) {
	ramp := q.definition.GetPolicy().GetRampNs()
	since := now - q.reopened
	if ramp == 0 || q.reopened == 0 || since >= ramp {
		return 0, false
	}
	if q.rule.kind == slotsKind {
		return max(1, mulDiv(q.rule.usable, ramp+9*since, 10*ramp)+1), true
	}
	// A tenth of the time, and nine tenths of it times the passed part of the ramp, on average half of it.
	worth := since/10 + mulDiv(9*since, since, 20*ramp) + 2
	return max(1, mulDiv(q.rule.usable, worth, q.rule.period)+1), true
}

// inRamp is the amount granted by a quota while it reopens or, of slots, the amount in use.
func (q *quota) inRamp() int64 {
	if q.rule.kind == slotsKind {
		return q.held + q.surely.sum
	}
	return q.ramped
}

// noteGrant records a grant for the policies.
func (j *Judge) noteGrant(holder string, class int32, needs []need) {
	for _, n := range needs {
		q := n.quota
		q.granted[class] = plus(q.granted[class], n.amount)
		q.ramped = plus(q.ramped, n.amount)
		j.pays(q, n.amount)
		if q.definition.GetPolicy() == nil {
			continue
		}
		u := j.usageOf(holder, q)
		u.granted = max(j.clock.Now, 1)
		if breaker := q.definition.Policy.Breaker; breaker != nil && u.refusals >= breaker.Failures {
			u.closedUntil = j.clock.Now + closedFor(breaker) // this is the call that tries
		}
	}
}

func closedFor(breaker *logpb.Breaker) int64 {
	if breaker.ClosedNs == 0 {
		return defaultClosed
	}
	return breaker.ClosedNs
}

// wants records that a class asked for quotas.
func (j *Judge) wants(ask *logpb.Reserve, result *logpb.Result) {
	j.asksFor(ask, result)
	needs, _ := j.needs(j.asked(ask))
	for _, n := range needs {
		n.quota.wanted[j.classOf(ask)] = max(j.clock.Now, 1)
	}
}

// answered records a provider's answer to a holder.
func (j *Judge) answered(holder string, q *quota, cause logpb.Cause) {
	switch cause {
	case logpb.Cause_CAUSE_SATURATED, logpb.Cause_CAUSE_EXHAUSTED, logpb.Cause_CAUSE_ACCOUNT, logpb.Cause_CAUSE_PLAN:
		j.limited(holder, q.name, 0)
	case logpb.Cause_CAUSE_OK:
		u := j.usageOf(holder, q)
		u.refusals, u.closedUntil, u.unsure = 0, 0, false
		return
	default:
		return
	}
	breaker := q.definition.GetPolicy().GetBreaker()
	if breaker == nil {
		return
	}
	u := j.usageOf(holder, q)
	if u.refusals++; u.refusals >= breaker.Failures {
		u.closedUntil = j.clock.Now + closedFor(breaker)
		j.entry.broken[q.name+" for "+holder]++
	}
}

// happenBreaker handles the opening of a holder's breaker.
func (j *Judge) happenBreaker(event *effect.Event) {
	j.stats.Breakers++
	key := event.Quota + " for " + event.Holder
	for j.entry.broken[key] == 0 {
		k := j.find(j.entry.next, func(command *logpb.Command, result *logpb.Result) bool { return j.tells(command, result, event.Holder) })
		if k < 0 {
			break
		}
		j.carryOut(k + 1)
	}
	q := j.quotas[event.Quota]
	if q == nil {
		j.violate("unexplained", "%s is closed, and does not exist", key)
		return
	}
	if j.entry.broken[key]--; j.entry.broken[key] >= 0 {
		return
	}
	delete(j.entry.broken, key)
	u := j.usageOf(event.Holder, q)
	if !u.unsure {
		j.violate("breaker", "%s is closed after %d refusals", key, u.refusals)
	}
	u.closedUntil = j.clock.Now + event.Duration
}

// unbroken finds breakers that should have opened.
func (j *Judge) unbroken() {
	for key, count := range j.entry.broken {
		if count > 0 {
			j.violate("breaker", "%s should be closed", key)
		}
	}
}

// tells says whether a command reported a provider's answer to a holder.
func (j *Judge) tells(command *logpb.Command, result *logpb.Result, holder string) bool {
	if end := command.GetEndTask(); end != nil {
		t := j.tasks[end.Task]
		ended := result.GetTaskEnded()
		return ended != nil && !ended.ReportLeftOut && end.Report != 0 && t != nil && t.holder == holder
	}
	report := command.GetReport()
	if report == nil || result.GetReported() == nil {
		return false
	}
	l := j.leases[report.Lease]
	return l != nil && l.holder == holder
}

// setOverride judges an override of a quota's limit, or its end.
func (j *Judge) setOverride(asked *logpb.SetOverride) {
	q := j.quotas[asked.Quota]
	if q == nil {
		j.violate("override", "%s is overridden, and does not exist", asked.Quota)
		return
	}
	if asked.Limit == nil {
		j.overrule(q, nil)
		return
	}
	j.stats.Overrides++
	j.overrule(q, &override{limit: *asked.Limit, until: plus(j.clock.Now, asked.ForNs)})
}

// overrides says whether a command changes a quota's limit: there may be no override to end.
func (j *Judge) overrides(asked *logpb.SetOverride) bool {
	if asked == nil {
		return false
	}
	q := j.quotas[asked.Quota]
	return asked.Limit != nil || q != nil && q.over != nil
}

// overrule gives a quota an override; nil: its own limit.
func (j *Judge) overrule(q *quota, to *override) {
	q.over = to
	delete(j.overridden, q)
	if to != nil {
		j.overridden[q] = true
	}
	j.setRule(q, q.definition)
}

// happenOverride handles the beginning or the end of an override. It ends by itself when its time is up, and not before.
func (j *Judge) happenOverride(event *effect.Event) {
	q := j.quotas[event.Quota]
	if q != nil && event.Duration == 0 && q.over != nil && q.over.until <= j.clock.Now {
		j.stats.OverridesEnded++
		j.overrule(q, nil)
	} else {
		j.belongs(event, func(command *logpb.Command, result *logpb.Result) bool {
			set := command.GetSetOverride()
			return set != nil && set.Quota == event.Quota && result.GetDone() != nil && (set.Limit != nil) == (event.Duration != 0)
		})
	}
	if q != nil && event.Amount != q.rule.limit {
		j.violate("override", "%s has a limit of %d, and is said to have %d", q.name, q.rule.limit, event.Amount)
	}
}

// overruled finds overrides that should have ended.
func (j *Judge) overruled() {
	for q := range j.overridden {
		if q.over.until <= j.clock.Now {
			j.violate("override", "%s has a limit of %d still, its override ended at %d", q.name, q.over.limit, q.over.until)
		}
	}
}

// chains returns the quotas that a Reserve asks for, and the alternatives, step by step along the fallback chains: all items with a
// fallback move together.
func (j *Judge) chains(ask *logpb.Reserve) [][]string {
	names := make([]string, len(ask.Items))
	for i, item := range ask.Items {
		names[i] = item.Quota
	}
	all := [][]string{names}
	for ask.Fallback && len(all) <= len(j.quotas) {
		next, moved := append([]string(nil), names...), false
		for i, name := range names {
			if q := j.quotas[name]; q != nil && j.quotas[q.definition.Fallback] != nil {
				next[i], moved = q.definition.Fallback, true
			}
		}
		if !moved {
			break
		}
		all, names = append(all, next), next
	}
	return all
}
