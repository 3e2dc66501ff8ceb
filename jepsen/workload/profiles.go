package workload

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Profile is a kind of worker: the number of workers in a run, and their behaviour.
type Profile struct {
	Name    string
	Actors  int
	Pace    float64
	Workers int
}

// Profiles are the profiles of a run of the default mix.
func Profiles() []Profile {
	return []Profile{
		{Name: "hot", Actors: 16, Pace: 6, Workers: 1},
		{Name: "many", Actors: 8, Pace: 6, Workers: 1},
		{Name: "queue", Actors: 12, Pace: 3, Workers: 1},
		{Name: "slots", Actors: 8, Pace: 5, Workers: 1},
		{Name: "renewers", Actors: 4, Pace: 20, Workers: 1},
		{Name: "sleepers", Actors: 6, Pace: 5, Workers: 1},
		{Name: "governed", Actors: 8, Pace: 40, Workers: 2},
		{Name: "linear", Actors: 4, Pace: 4, Workers: 1},
		{Name: "policy", Actors: 9, Pace: 7, Workers: 1},
		{Name: "pools", Actors: 6, Pace: 4, Workers: 1},
		{Name: "chain", Actors: ChainSteps, Pace: 5, Workers: 1},
		{Name: "tasks", Actors: 5, Pace: 4, Workers: 2},
		{Name: "operator", Actors: 1, Pace: 0.5, Workers: 1},
		{Name: "watchers", Actors: 3, Pace: 1, Workers: 1},
	}
}

// profiles are the actions of an actor of each profile until its context ends.
var profiles = map[string]func(context.Context, *worker, int){
	// hot: all on one quota and its children, small amounts, much in flight, sometimes repeated.
	"hot": raw(habits{
		quotas: []string{"hot", "tree/a", "tree/b"}, items: 2, amount: 3, ttlMin: time.Second, ttlMax: 6 * time.Second, consume: 50,
		bare: 10, gone: 30, twice: 10, late: 10, reserve: 40, consumeLease: 15, settle: 15, renew: 5, release: 15, abandon: 5, stale: 8,
		report: 2, read: 15,
		most: 6, limited: 30,
	}),
	// many: composite requests over many quotas, and batches.
	"many": raw(habits{
		quotas: Many(), items: 4, amount: 5, ttlMin: time.Second, ttlMax: 20 * time.Second, consume: 30, bare: 5, twice: 5, late: 5,
		reserve: 30, consumeLease: 15, settle: 15, renew: 5, release: 10, abandon: 5, stale: 5, report: 5, read: 10, batch: 10, most: 12,
		limited: 30,
	}),
	// queue: demand above the limit, in three classes; they wait.
	"queue": raw(habits{
		quotas: []string{"queue"}, items: 1, amount: 3, ttlMin: 2 * time.Second, ttlMax: 5 * time.Second, consume: 80, wait: 80,
		bare: 15, gone: 70, waitMax: 4 * time.Second, withdraw: 15, twice: 5, late: 5, reserve: 60, settle: 20, release: 20, abandon: 5, read: 5,
		most: 3,
	}),
	// slots: few at once, with grace.
	"slots": raw(habits{
		quotas: []string{"slots"}, items: 1, amount: 1, ttlMin: time.Second, ttlMax: 3 * time.Second, consume: 100, wait: 50,
		waitMax: 3 * time.Second,
		bare:    15, gone: 70, twice: 5, late: 5, reserve: 50, settle: 20, renew: 20, release: 30, abandon: 10, stale: 10, read: 5, most: 1,
	}),
	// renewers: many leases of equal length that are always close to their deadline.
	"renewers": raw(habits{
		quotas: []string{"renewed"}, items: 1, amount: 1, ttlMin: 2 * time.Second, ttlMax: 2 * time.Second, reserve: 30, renew: 60, abandon: 2,
		stale: 3, batch: 2, most: 40,
	}),
	// sleepers: their worker is paused and cut off; they return with their old leases.
	"sleepers": raw(habits{
		quotas: []string{"sleepers", "window"}, items: 2, amount: 4, ttlMin: time.Second, ttlMax: 4 * time.Second, consume: 40, reserve: 30,
		consumeLease: 25, settle: 20, renew: 15, release: 10, abandon: 5, stale: 20, late: 10, twice: 5, most: 5,
	}),
	// policy: quotas with policies that withhold grants before the quota is exhausted, in three classes.
	"policy": raw(habits{
		quotas: []string{"policy/hour", "policy/strict", "policy/rate", "policy/slots", "policy/changed", foretold, lent}, items: 2, amount: 3,
		ttlMin: time.Second, ttlMax: 3 * time.Second, consume: 80, wait: 40, waitMax: 3 * time.Second, withdraw: 5, twice: 5, late: 5,
		reserve: 50, settle: 10, renew: 3, release: 15, abandon: 5, stale: 3, report: 25,
		read: 5, most: 3, limited: 40, fallback: 30, emergency: 20,
	}),
	// pools: demand above the limits of two keys and of both together, in three classes; they wait.
	"pools": raw(habits{
		quotas: []string{"keys", "seats"}, items: 2, amount: 2, ttlMin: time.Second, ttlMax: 3 * time.Second, consume: 80, wait: 60,
		waitMax:  3 * time.Second,
		withdraw: 10, twice: 5, late: 5, reserve: 50, settle: 15, renew: 5, release: 20, abandon: 5, stale: 5, report: 3, read: 5, most: 3,
		limited: 30,
	}),
	// chain: the steps of a workflow, which want more than the limit.
	"chain": raw(habits{
		quotas: []string{"chain"}, items: 1, amount: 3, ttlMin: time.Second, ttlMax: 6 * time.Second, consume: 60, wait: 40,
		waitMax:  4 * time.Second,
		withdraw: 5, twice: 5, late: 5, reserve: 50, settle: 10, renew: 10, release: 30, abandon: 5, stale: 5, read: 5, report: 5, most: 2,
		limited: 20, workflow: "chain",
	}),
	"tasks":    tasks,
	"linear":   linear,
	"governed": governed,
	"operator": operator,
	"watchers": watcher,
	"agents":   agents,
}

// Many are the names of the quotas of the profile many.
func Many() []string {
	names := make([]string, 200)
	for i := range names {
		names[i] = fmt.Sprintf("many/%03d", i)
	}
	return names
}

// The provider's limits, which it enforces by itself.
const (
	// ProviderRate and ProviderSlotsQuota are the quotas of its calls.
	ProviderRate       = "provider/rate"
	ProviderSlotsQuota = "provider/slots"
	// ProviderLimit is the limit of a rate per ProviderPeriod.
	ProviderLimit  = 300
	ProviderPeriod = 5 * time.Second
	// ProviderSlots is the number of concurrent calls.
	ProviderSlots = 3
)

// Quotas are the quotas of a run.
func Quotas() []*quotav1.Quota {
	rate := func(name string, limit int64, per time.Duration, parent string) *quotav1.Quota {
		return &quotav1.Quota{Name: name, Parent: parent, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(per)}}}
	}
	slots := func(name string, limit int64, grace time.Duration) *quotav1.Quota {
		return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: limit, Grace: durationpb.New(grace)}}}
	}
	quotas := []*quotav1.Quota{
		rate("hot", 300, 10*time.Second, ""), rate("tree", 100, 5*time.Second, ""), rate("tree/a", 70, 5*time.Second, "tree"),
		rate("tree/b", 70, 5*time.Second, "tree"), rate("queue", 60, 3*time.Second, ""), slots("slots", 3, 500*time.Millisecond),
		rate("renewed", 1_000_000, time.Minute, ""), rate("sleepers", 400, 4*time.Second, ""),
		{Name: "window", Rule: &quotav1.Quota_Window{Window: &quotav1.Window{
			Limit: 500, Every: "10s", Skew: durationpb.New(time.Second),
		}}},
		rate(ProviderRate, ProviderLimit, ProviderPeriod, ""), slots(ProviderSlotsQuota, ProviderSlots, time.Second),
	}
	quotas = append(quotas, poolMembers()...)
	for number := range LinearQuotas {
		quotas = append(quotas, slots(Linear(number), LinearSlots, LinearGrace))
	}
	for _, name := range Many() {
		quotas = append(quotas, rate(name, 50, 5*time.Second, ""))
	}
	return append(quotas, policies()...)
}

// HolderRules map actors of the profiles queue, policy and pools to classes.
func HolderRules() []*quotav1.HolderRule {
	var rules []*quotav1.HolderRule
	for _, profile := range []string{"queue", "policy", "pools"} {
		for number, class := range []quotav1.Class{
			quotav1.Class_CLASS_CRITICAL, quotav1.Class_CLASS_CRITICAL, quotav1.Class_CLASS_BACKGROUND, quotav1.Class_CLASS_BACKGROUND,
		} {
			rules = append(rules, &quotav1.HolderRule{Pattern: fmt.Sprintf("%s-*-%d", profile, number), Class: class})
		}
	}
	return rules
}
