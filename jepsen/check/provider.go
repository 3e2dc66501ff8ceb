package check

import (
	"sort"
	"time"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/workload"
)

// spends is the provider's own log, by quota, in order of arrival.
func (r *run) spends() map[string][]*history.Spend {
	spends, err := history.All[history.Spend](r.dir.Spends())
	if err != nil {
		r.rateVerdict().violate("the provider's log: %v", err)
	}
	sort.SliceStable(spends, func(i, j int) bool { return spends[i].Began < spends[j].Began })
	byQuota := map[string][]*history.Spend{}
	for _, s := range spends {
		byQuota[s.Quota] = append(byQuota[s.Quota], s)
	}
	r.stats.Spends = len(spends)
	return byQuota
}

func (r *run) rateVerdict() *Verdict {
	return r.verdict("provider-rate", "In the provider's own log no interval of a period holds more than the limit.")
}

// provider checks the provider's own log: no interval of a period holds more than the limit.
func (r *run) provider(spends map[string][]*history.Spend) {
	v := r.rateVerdict()
	if r.hurried() {
		v.Checked = len(spends[workload.ProviderRate])
		v.Examples = append(v.Examples, "not judged: a leader's clock ran wrong by more than the promise allows for")
		return
	}
	r.stats.ProviderPeak = r.rate(v, workload.ProviderRate, spends, workload.ProviderLimit, workload.ProviderPeriod)
	r.rate(v, workload.ModelRequests, spends, workload.ModelLimit, workload.ModelPeriod)
}

// rate checks one limit, and returns the highest sum of a period.
func (r *run) rate(v *Verdict, quota string, spends map[string][]*history.Spend, limit int64, period time.Duration) (peak int64) {
	calls := spends[quota]
	v.Checked += len(calls)
	var sum int64
	first := 0
	for i, s := range calls {
		if r.forgotten(s.Began) { // counting restarts after it
			sum, first = 0, i+1
			continue
		}
		sum += s.Amount
		for s.Began-calls[first].Began >= int64(period) {
			sum -= calls[first].Amount
			first++
		}
		peak = max(peak, sum)
		if sum > limit {
			v.violate("in the %v up to %d the provider had %d of %s, its limit is %d (this one by %s)", period, s.Began, sum, quota, limit, s.By)
		}
	}
	return peak
}

// restoreFelt is how long after a restore the provider may receive calls of grants that the restore took back: their spend-by or slot
// deadline has passed by then.
const restoreFelt = 2 * workload.ProviderPeriod

// forgotten says whether a recent restore may have made the cluster forget grants. A restore implies that; runbooks therefore stop the
// holders first.
func (r *run) forgotten(at int64) bool {
	for _, restore := range r.restores {
		if restore.Began <= at && at <= restore.Ended+int64(restoreFelt) {
			return true
		}
	}
	return false
}

// slots counts concurrent calls at the provider.
func (r *run) slots(spends map[string][]*history.Spend) {
	v := r.verdict("provider-slots", "The provider never serves more calls at once than there are slots.")
	r.atOnce(v, spends[workload.ProviderSlotsQuota], workload.ProviderSlots)
	r.atOnce(v, spends[workload.ModelStreams], workload.ModelSlots)
}

// atOnce checks one limit. A call whose agent left counts until then: the provider may notice later.
func (r *run) atOnce(v *Verdict, calls []*history.Spend, limit int) {
	v.Checked += len(calls)
	type edge struct {
		at    int64
		begin bool
		by    string
	}
	left := r.agentsLeft()
	var edges []edge
	for _, s := range calls {
		ended := s.Ended
		if at, ok := left[s.ID]; ok && s.ID != "" {
			ended = min(ended, max(at, s.Began))
		}
		edges = append(edges, edge{s.Began, true, s.By}, edge{ended, false, s.By})
	}
	sort.SliceStable(edges, func(i, j int) bool {
		if edges[i].at != edges[j].at {
			return edges[i].at < edges[j].at
		}
		return !edges[i].begin && edges[j].begin
	})
	inside := 0
	for _, e := range edges {
		if !e.begin {
			inside--
			continue
		}
		inside++
		if inside > limit && !r.forgotten(e.at) {
			v.violate("at %d the provider served %d at once, its limit is %d (this one by %s)", e.at, inside, limit, e.by)
		}
	}
}
