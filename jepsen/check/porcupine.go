package check

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/workload"
	"github.com/quotad/quotad/rpc/quotav1"
)

// mostUnknown bounds the unknown outcomes of one history: each doubles the search.
const mostUnknown = 12

// searchFor bounds the search of one history; a longer search counts as not done.
const searchFor = 20 * time.Second

// lateBy is how late a lease may end in these histories: cluster time stands still without a leader. The model of the rules knows cluster
// time and is exact; here only real time is known.
const lateBy = 30 * time.Second

// slot is a slot that counts; the zero value is a free one.
type slot struct {
	lease uint64 // unknownLease if the answer is unknown
	// early and late bound when it ends by itself.
	early, late int64
}

const unknownLease = math.MaxUint64

// usedSlots is the state of one quota, in ascending order.
type usedSlots [workload.LinearSlots]slot

// linearAsked is an operation's input, linearAnswer its output.
type linearAsked struct {
	what      string // reserve, release, look
	lease     uint64
	call, ret int64
	// least is the shortest time that a lease lasts.
	least time.Duration
}

type linearAnswer struct {
	what  string // granted, refused, released, stale, sees, unknown
	lease uint64
	free  int64
}

// porcupine searches the short histories of single quotas for a linear order. It does not use the log: it checks the checkers that do.
func (r *run) porcupine() {
	v := r.verdict("linearizable",
		"Each short history of one quota, reads included, has a linear order (searched by porcupine, from the clients' view alone).")
	histories := r.linearHistories(func(c *call) bool { return r.lost(c.highest()) == 0 },
		func(c *call) bool { return undated(c, r.restores, nil) })
	for number, restore := range r.restores {
		before := r.linearHistories(func(c *call) bool {
			index, lost := c.highest(), r.lost(c.highest())
			return c.Sent < restore.Ended && index < restore.Index && (lost == 0 || lost == number+1)
		}, func(c *call) bool { return undated(c, r.restores[:number], restore) })
		for name, operations := range before {
			histories[fmt.Sprintf("%s, up to restore %d", name, number+1)] = operations
		}
	}
	abandoned := 0
	for _, name := range slices.Sorted(keys(histories)) {
		operations := histories[name]
		if unknown(operations) > mostUnknown {
			abandoned++
			continue
		}
		model := linearModel().ToModel()
		result, info := porcupine.CheckOperationsVerbose(model, operations, searchFor)
		switch result {
		case porcupine.Ok:
			v.Checked++
		case porcupine.Unknown:
			abandoned++
		case porcupine.Illegal:
			picture := filepath.Join(string(r.dir), "porcupine-"+strings.ReplaceAll(name, "/", "-")+".html")
			err := porcupine.VisualizePath(model, info, picture)
			v.violate("%s: %d operations have no linear order; picture: %s (%v)", name, len(operations), filepath.Base(picture), err)
		}
	}
	r.stats.Searched, r.stats.NotSearched = v.Checked, abandoned
	if abandoned > v.Checked {
		v.Outcome = cmp.Or(v.Outcome, Inconclusive)
		v.Examples = append(v.Examples, fmt.Sprintf("%d histories of %d have too many open outcomes or took too long", abandoned,
			abandoned+v.Checked))
	}
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func unknown(operations []porcupine.Operation) int {
	count := 0
	for i := range operations {
		if replied, ok := operations[i].Output.(linearAnswer); ok && replied.what == "unknown" {
			count++
		}
	}
	return count
}

// pending is a request with all its attempts.
type pending struct {
	quota   string
	asked   linearAsked
	replied linearAnswer
}

// undated says whether an answer may be of a state outside a history: an error names no index, so only its times say whether it is from
// before or after a restore. earlier are the restores before the history: what they took back does not belong to it. last is the restore
// that ends the history, nil if none does.
func undated(c *call, earlier []*history.Restore, last *history.Restore) bool {
	if c.highest() > 0 {
		return false
	}
	of := func(restore *history.Restore) bool { return c.Sent < restore.Ended }
	return slices.ContainsFunc(earlier, of) || last != nil && c.Returned >= last.Began
}

// learn adds one attempt. The first answer ends the request; open: the answer may be of another history.
func (p *pending) learn(c *call, quotaOf map[uint64]string, open bool) {
	switch request := c.request.(type) {
	case *quotav1.ReserveRequest:
		p.asked.what, p.quota = "reserve", request.Items[0].Quota
	case *quotav1.ReleaseRequest:
		p.asked.what, p.asked.lease, p.quota = "release", request.Lease, quotaOf[request.Lease]
	default:
		return
	}
	if p.replied.what != "unknown" || open {
		return
	}
	switch answer := c.response.(type) {
	case *quotav1.ReserveResponse:
		p.asked.ret = c.Returned
		p.replied = linearAnswer{what: "refused"}
		if lease := answer.GetLease(); lease != nil {
			p.replied = linearAnswer{what: "granted", lease: lease.Id}
			quotaOf[lease.Id] = p.quota
		}
	case *quotav1.ReleaseResponse:
		p.asked.ret = c.Returned
		p.replied = linearAnswer{what: "released"}
	default:
		switch quotav1.Reason(c.Error.Reason) {
		case quotav1.Reason_REASON_STALE_FENCE, quotav1.Reason_REASON_NEVER_ISSUED:
			p.asked.ret = c.Returned
			p.replied = linearAnswer{what: "stale"}
		default: // another outcome leaves it unknown
		}
	}
}

// linearHistories merges the attempts of each request and sorts the requests by quota. It leaves out answers that do not count: the
// operations that a restore took back have no common order with later ones; without them there is an order. With an open answer, the
// outcome of its request is unknown.
func (r *run) linearHistories(counts, open func(*call) bool) map[string][]porcupine.Operation {
	requests := map[requestID]*pending{}
	quotaOf := map[uint64]string{}
	histories := map[string][]porcupine.Operation{}
	clients := map[string]int{}
	add := func(client, quota string, asked linearAsked, replied linearAnswer) {
		if _, ok := clients[client]; !ok {
			clients[client] = len(clients)
		}
		histories[quota] = append(histories[quota], porcupine.Operation{
			ClientId: clients[client], Input: asked, Call: asked.call, Output: replied, Return: asked.ret,
		})
	}
	by := map[requestID]string{}
	least := workload.LinearTTL * 99 / 100
	if r.hurried() {
		least = workload.LinearTTL * 85 / 100 // its clock may be this wrong before its guard ends it
	}
	for _, c := range r.calls {
		if !strings.HasPrefix(c.Client, "linear") {
			continue
		}
		if !counts(c) {
			if lease := grantedBy(c); lease != nil && len(lease.Items) > 0 {
				quotaOf[lease.Id] = lease.Items[0].Quota
			}
			continue
		}
		if answer, ok := c.response.(*quotav1.GetQuotaResponse); ok && answer != nil {
			add(c.Client, answer.Quota.Definition.Name, linearAsked{what: "look", call: c.Sent, ret: c.Returned},
				linearAnswer{what: "sees", free: answer.Quota.Available})
			continue
		}
		if c.read() || !c.parts[0].identified {
			continue
		}
		id := c.parts[0].id
		p := requests[id]
		if p == nil {
			p = &pending{asked: linearAsked{call: c.Sent, ret: math.MaxInt64, least: least}, replied: linearAnswer{what: "unknown"}}
			requests[id], by[id] = p, c.Client
		}
		p.learn(c, quotaOf, open(c))
	}
	for id, p := range requests {
		if p.quota != "" && p.asked.what != "" {
			add(by[id], p.quota, p.asked, p.replied)
		}
	}
	return histories
}

// grantedBy is the lease that a call was granted; nil: none.
func grantedBy(c *call) *quotav1.Lease {
	if answer, ok := c.response.(*quotav1.ReserveResponse); ok {
		return answer.GetLease()
	}
	return nil
}

// linearModel is the specification of one quota with few slots. A lease may end by itself from early on, and has ended by late; between the
// two both are possible.
func linearModel() *porcupine.NondeterministicModel {
	return &porcupine.NondeterministicModel{
		Init: func() []any { return []any{usedSlots{}} },
		Step: func(state, input, output any) []any {
			before, asked, replied := linear(state, input, output)
			var next []any
			for _, met := range expire(before, asked) {
				for _, after := range step(met, asked, replied) {
					if !slices.Contains(next, any(after)) {
						next = append(next, after)
					}
				}
			}
			return next
		},
		DescribeOperation: func(input, output any) string {
			_, asked, replied := linear(usedSlots{}, input, output)
			return fmt.Sprintf("%s %d: %s %d %d", asked.what, asked.lease, replied.what, replied.lease, replied.free)
		},
		DescribeState: func(state any) string { return fmt.Sprint(state) },
	}
}

// linear gives porcupine's values their types.
func linear(state, input, output any) (usedSlots, linearAsked, linearAnswer) {
	before, ok1 := state.(usedSlots)
	asked, ok2 := input.(linearAsked)
	replied, ok3 := output.(linearAnswer)
	if !ok1 || !ok2 || !ok3 {
		panic(fmt.Sprintf("check: %T, %T, %T are not of the model", state, input, output))
	}
	return before, asked, replied
}

// expire returns the states in which an operation may find a quota.
func expire(state usedSlots, asked linearAsked) []usedSlots {
	states := []usedSlots{state}
	for i, s := range state {
		if s.lease == 0 || asked.ret < s.early {
			continue
		}
		for _, other := range states {
			other[i] = slot{}
			states = append(states, other)
		}
		if asked.call > s.late {
			states = states[len(states)/2:]
		}
	}
	return states
}

// step returns the states in which an operation may leave a quota; none: it is impossible.
func step(state usedSlots, asked linearAsked, replied linearAnswer) []usedSlots {
	free := 0
	for _, s := range state {
		if s.lease == 0 {
			free++
		}
	}
	at := slices.IndexFunc(state[:], func(s slot) bool { return s.lease != 0 && s.lease == asked.lease })
	switch {
	case replied.what == "sees":
		return when(int64(free) == replied.free, state)
	case replied.what == "refused":
		return when(free == 0, state)
	case replied.what == "granted" && free > 0:
		return []usedSlots{state.with(replied.lease, asked)}
	case replied.what == "released" && at >= 0:
		return []usedSlots{state.without(at)}
	case replied.what == "stale": // its slot may still count, by its grace
		return when(at < 0 || asked.ret >= state[at].early, state)
	case replied.what == "unknown" && asked.what == "reserve" && free > 0:
		return []usedSlots{state, state.with(unknownLease, asked)}
	case replied.what == "unknown" && asked.what == "release" && at >= 0:
		return []usedSlots{state, state.without(at)}
	case replied.what == "unknown":
		return []usedSlots{state}
	}
	return nil
}

func when(ok bool, state usedSlots) []usedSlots {
	if ok {
		return []usedSlots{state}
	}
	return nil
}

// with takes a slot.
func (u usedSlots) with(lease uint64, asked linearAsked) usedSlots {
	u[0] = slot{lease: lease, early: asked.call + int64(asked.least), late: math.MaxInt64}
	if asked.ret != math.MaxInt64 {
		u[0].late = asked.ret + int64(workload.LinearTTL+workload.LinearGrace+lateBy)
	}
	return u.sorted()
}

// without frees one.
func (u usedSlots) without(at int) usedSlots {
	u[at] = slot{}
	return u.sorted()
}

// sorted puts free slots first, so that with finds one there and equal states compare equal.
func (u usedSlots) sorted() usedSlots {
	slices.SortFunc(u[:], func(a, b slot) int { return cmp.Or(cmp.Compare(a.lease, b.lease), cmp.Compare(a.early, b.early)) })
	return u
}
