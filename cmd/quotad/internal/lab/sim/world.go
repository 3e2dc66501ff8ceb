// Package sim runs a fleet in virtual time: its agents and a provider that enforces its limits with its own count. On one
// of two sides, agents use quotad's own state machine behind a leader that stamps, encodes and commits as a node does. On
// the other side, each caller is alone, with retries, backoff and jitter.
//
// A run is the same for a seed, byte for byte: it has one goroutine, no clock, and no dependence on map order. Live runs
// the same agents and keeps the same records in real time, and leaves the calls to an Outside.
package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Parts is the number of parts of a run for its time series.
const Parts = 240

// Side is how a fleet shares its quotas.
type Side string

// The sides.
const (
	// Alone: each caller on its own.
	Alone Side = "alone"
	// Governed: through quotad.
	Governed Side = "quotad"
)

// world is one run.
type world struct {
	*schedule
	fleet    *fleet.Fleet
	provider *provider.Provider
	// quotas are the fleet's limits, in the form that quotad has.
	quotas []*quotav1.Quota
	// limits are their indexes by name; parents are the indexes of their parents, -1 for none.
	limits  map[string]int
	parents []int
	cluster *cluster
	agents  []*agent
	book    *book
	network dice
	// unfinished is the number of agents with tasks left; endless: some agents never end.
	unfinished int
	endless    bool
	// outages is the number of present outages.
	outages int

	// transmit sends one attempt of a call to the provider, which it must reach by a deadline; 0: none. The last argument
	// receives the answer.
	transmit func(*call, int64, func(provider.Answer))
	// newCaller makes an agent's caller.
	newCaller func(*agent) caller
}

// newWorld returns a run without agents.
func newWorld(f *fleet.Fleet, seed uint64) *world {
	w := &world{schedule: &schedule{}, fleet: f, quotas: f.Limits(), limits: map[string]int{}, network: newDice(seed, "network")}
	w.transmit, w.newCaller = w.pretend, newCaller
	w.buildProvider()
	w.book = newBook(w)
	return w
}

// populate makes the agents.
func (w *world) populate(seed uint64) {
	for _, kind := range w.fleet.Agents {
		for i, name := range kind.Holders() {
			w.addAgent(kind, name, i == 0, seed)
		}
	}
	w.link()
}

// allDone reports whether all tasks are done.
func (w *world) allDone() bool { return w.unfinished == 0 && !w.endless }

// checkEvery is the number of events between two checks of the context.
const checkEvery = 4096

// Run runs a fleet on one side. It returns an error if the quotas cannot be applied, and the context's cause if that ends
// the run.
func Run(ctx context.Context, f *fleet.Fleet, side Side, seed uint64) (*Result, error) {
	w := newWorld(f, seed)
	if side == Governed {
		w.cluster = newCluster(w.schedule, f.Cluster, f.Begins, newDice(seed, "cluster"))
		w.cluster.hear = w.book.hear
		if err := w.found(); err != nil {
			return nil, err
		}
	}
	w.populate(seed)
	w.arrange(seed)
	length := int64(f.For)
	for events := 0; w.step(length); events++ {
		if w.allDone() {
			length = w.now
			break
		}
		if events%checkEvery == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	w.now = length
	return w.book.result(side, seed), nil
}

// link tells agents their followers and the workflows in which they are steps.
func (w *world) link() {
	for _, a := range w.agents {
		for _, before := range w.agents {
			if slices.Contains(a.kind.Follows, before.kind.Name) {
				before.followers = append(before.followers, a)
				a.handed[before.number] = 0
			}
		}
	}
	if w.cluster == nil {
		return
	}
	for _, workflow := range w.fleet.Workflows {
		c := newChain(w, workflow)
		w.book.chains = append(w.book.chains, c)
		for _, a := range w.agents {
			if _, ok := c.upstream[a.name]; ok {
				a.chains = append(a.chains, c)
			}
		}
	}
}

// arrange schedules the events at fixed times: outages, others' use, kills of the leader, and readings of the provider's
// counts and the quotas.
func (w *world) arrange(seed uint64) {
	part := int64(w.fleet.For) / Parts
	for _, o := range w.fleet.Provider.Outages {
		w.at(int64(o.At), func() { w.outage(1) })
		w.at(int64(o.At+o.For), func() { w.outage(-1) })
	}
	for i, q := range w.quotas {
		if part := w.fleet.Provider.Limits[q.Name].Others; part > 0 {
			o := &others{world: w, meter: w.provider.Meters()[i], part: part, dice: newDice(seed, "others of "+q.Name)}
			w.at(0, o.use)
		}
	}
	for i := range int64(Parts) {
		w.at(i*part, func() {
			for _, m := range w.provider.Meters() {
				m.Observe(w.now)
			}
		})
	}
	if w.cluster == nil {
		return
	}
	for _, at := range w.fleet.Cluster.Kills {
		w.at(int64(at), w.cluster.kill)
	}
	for i := range int64(Parts) {
		w.at(i*part+part/2, func() { w.book.readQuotas(int(i)) })
	}
}

// outage records that outages begin or end.
func (w *world) outage(more int) {
	w.outages += more
	for _, m := range w.provider.Meters() {
		m.Calm(w.outages == 0)
	}
}

// Request is the request that applies a fleet: its quotas and workflows, and holder rules for its classes and weights.
func Request(f *fleet.Fleet) *quotav1.ApplyQuotasRequest {
	return &quotav1.ApplyQuotasRequest{
		Quotas: f.Quotas, Holders: rulesOf(f), ReplaceHolders: true, Workflows: f.Workflows, ReplaceWorkflows: true,
	}
}

// found applies the quotas, holder rules and workflows as the cluster's first entry.
func (w *world) found() error {
	command, err := rpc.ApplyQuotasCommand(Request(w.fleet))
	if err != nil {
		return err
	}
	result, err := w.enter(command)
	if err != nil {
		return err
	}
	if failed := result.GetFailure(); failed != nil {
		return fmt.Errorf("%s; %s", failed.Message, failed.Hint)
	}
	return nil
}

// enter applies one command at once, as an entry of its own.
func (w *world) enter(command *logpb.Command) (*logpb.Result, error) {
	now := w.cluster.present()
	data, err := proto.Marshal(&logpb.Entry{
		Version: fsm.EntryVersion, StampNs: now.Now, WallEarlyNs: now.WallEarly, WallLateNs: now.WallLate, Commands: []*logpb.Command{command},
	})
	if err != nil {
		return nil, err
	}
	w.cluster.index++
	return w.cluster.machine.Apply(w.cluster.index, w.cluster.term, data).Results[0], nil
}

// rulesOf returns the holder rules for a fleet's classes and weights. A standard agent with weight 1 needs none.
func rulesOf(f *fleet.Fleet) []*quotav1.HolderRule {
	var rules []*quotav1.HolderRule
	for _, kind := range f.Agents {
		if kind.Class == quotav1.Class_CLASS_STANDARD && kind.Weight == 1 {
			continue
		}
		for _, name := range kind.Holders() {
			rules = append(rules, &quotav1.HolderRule{Pattern: name, Class: kind.Class, Weight: int32(kind.Weight)})
		}
	}
	return rules
}

// buildProvider makes the provider that the quotas describe, with the deviations in the file.
func (w *world) buildProvider() {
	meters := make([]*provider.Meter, len(w.quotas))
	for i, q := range w.quotas {
		w.limits[q.Name] = i
		meters[i] = provider.NewMeter(ruleOf(q, w.fleet.Provider.Limits), w.fleet.Begins.UnixNano(), int64(w.fleet.For), Parts)
	}
	for _, q := range w.quotas {
		parent, ok := w.limits[q.Parent]
		if !ok {
			parent = -1
		}
		w.parents = append(w.parents, parent)
	}
	var outages []provider.Outage
	for _, o := range w.fleet.Provider.Outages {
		outages = append(outages, provider.Outage{
			Limit: w.limits[o.Quota], From: int64(o.At), To: int64(o.At + o.For), Says: o.Says, Means: string(o.Means),
		})
	}
	w.provider = provider.New(meters, outages, w.fleet.Provider.Silent)
}

// ruleOf returns the provider's rule for a quota.
func ruleOf(q *quotav1.Quota, limits map[string]fleet.Limit) provider.Rule {
	rule := provider.Rule{Quota: q.Name}
	switch r := q.Rule.(type) {
	case *quotav1.Quota_Window:
		rule.Kind, rule.Limit = provider.Calendar, r.Window.Limit
		if r.Window.Anchor == quotav1.Anchor_ANCHOR_PROVIDER {
			rule.Kind = provider.Anchored
		}
		rule.Period = WindowLength(r.Window.Every)
		rule.Month = r.Window.Every == "month"
	case *quotav1.Quota_Rate:
		rule.Kind, rule.Limit, rule.Period, rule.Burst = provider.Sliding, r.Rate.Limit, r.Rate.Per.AsDuration(), r.Rate.Burst
	case *quotav1.Quota_Slots:
		rule.Kind, rule.Limit = provider.Slots, r.Slots.Limit
	}
	if other, ok := limits[q.Name]; ok {
		if other.Limit >= 0 {
			rule.Limit = other.Limit
		}
		if other.NoBurst {
			rule.Burst = 0
		}
		rule.Tells = other.Others > 0
	}
	return rule
}

// WindowLength returns the length of a window; a month counts as 30 days.
func WindowLength(every string) time.Duration {
	switch every {
	case "hour":
		return time.Hour
	case "day":
		return 24 * time.Hour
	case "month":
		return 30 * 24 * time.Hour
	}
	length, err := time.ParseDuration(every)
	if err != nil {
		return 0 // the file's parser accepts no other value
	}
	return length
}

// charge returns the amounts that the provider counts for a call with these uses, on their limits and the ancestors. None
// of the uses is a pool.
func (w *world) charge(c *call, uses []fleet.Use) (charged []provider.Amount) {
	for i, use := range uses {
		counted := c.actual[i]
		if c.agent.settleMax[w.limits[use.Quota]] {
			counted = max(counted, use.Estimate)
		}
		for limit := w.limits[use.Quota]; limit >= 0; limit = w.parents[limit] {
			at := slices.IndexFunc(charged, func(c provider.Amount) bool { return c.Limit == limit })
			if at < 0 {
				at = len(charged)
				charged = append(charged, provider.Amount{Limit: limit})
			}
			charged[at].N += counted
		}
	}
	return charged
}

// noteSent records that an attempt of a call is sent.
func (w *world) noteSent(c *call) {
	c.sent = w.now
	if c.tries++; c.tries == 1 {
		c.agent.sentCalls++
	}
	w.book.sent(c)
}

// pretend is transmit in virtual time.
func (w *world) pretend(c *call, deadline int64, then func(provider.Answer)) {
	w.noteSent(c)
	served, charged := c.agent.dice.span(c.agent.kind.Latency), c.charged
	w.in(w.network.span(w.fleet.Network), func() {
		if deadline > 0 && w.now > deadline {
			w.book.late++
		}
		answer := w.provider.Arrive(w.now, charged)
		if answer.Refused {
			served = 0 // the provider does no work for it
		}
		w.in(served, func() {
			if !answer.Refused {
				w.provider.Done(w.now, charged)
			}
			w.in(w.network.span(w.fleet.Network), func() {
				w.book.answered(c, answer)
				if c.life == c.agent.life {
					then(answer)
				}
			})
		})
	})
}

// classWord names a class.
func classWord(class quotav1.Class) string { return quotafile.ClassWord(class) }
