package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
)

// pooled is a fleet on two keys, each with limits of its own below the provider's common one.
func pooled(t *testing.T, how string) *fleet.Fleet {
	t.Helper()
	f, err := fleet.Parse("fleet.yaml", fmt.Appendf(nil, `for: 20m
quotas:
  - {name: all, rate: {limit: 100000, per: 1m}}
  - {name: a/requests, parent: all, rate: {limit: 30, per: 1m}}
  - {name: b/requests, parent: all, rate: {limit: 60, per: 1m}}
  - {name: a/tokens, rate: {limit: 3000, per: 1m}}
  - {name: b/tokens, rate: {limit: 6000, per: 1m}, settle: max}
  - {name: requests, pool: {members: [{name: spare, quota: all}, {name: a, quota: a/requests}, {name: b, quota: b/requests}]}}
  - {name: tokens, pool: {members: [{name: b, quota: b/tokens}, {name: a, quota: a/tokens}]}}
provider: {outages: [{quota: a/tokens, at: 5m, for: 5m}]}
agents:
  - {name: picard, count: 4, latency: 1s-3s, patience: 10m, use: {requests: 1, tokens: {estimate: 100, actual: 40-100}}%s}
`, how))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestPools_CallsDrawOnOneMember: a call draws on one member in all pools, and all of its commands name that member's
// quotas.
func TestPools_CallsDrawOnOneMember(t *testing.T) {
	for name, how := range map[string]string{"call by call": "", "batches": ", batch: true", "held": ", hold: 5, hold_ttl: 1m"} {
		t.Run(name, func(t *testing.T) {
			r, err := Run(t.Context(), pooled(t, how), Governed, 7)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Failures) > 0 || r.Refused > 0 || r.GivenUp > 0 || r.Late > 0 {
				t.Errorf("failures %v, %d refused, %d given up, %d late", r.Failures, r.Refused, r.GivenUp, r.Late)
			}
			used := map[string]int64{}
			for i := range r.Quotas {
				q := &r.Quotas[i]
				if used[q.Quota] = q.Total; q.Total == 0 || q.Peak > q.Limit {
					t.Errorf("%s: %d used, at most %d of %d", q.Quota, q.Total, q.Peak, q.Limit)
				}
			}
			if used["all"] != used["a/requests"]+used["b/requests"] {
				t.Errorf("used %v: the parent counts what its children do, and no pool's member of another name", used)
			}
			if used["a/requests"]*40 > used["a/tokens"] || used["b/requests"]*100 != used["b/tokens"] {
				t.Errorf("used %v: a call's tokens are of another key than its request", used)
			}
			// In three quarters of the time a allows a third, in the other quarter b serves alone.
			if part := float64(used["a/requests"]) / float64(used["all"]); part < 0.15 || part > 0.34 {
				t.Errorf("used %v: a has %.2f of it", used, part)
			}
		})
	}
}

// TestPools_AloneDrawsAnyMember: alone, callers choose a random member for each attempt, and hit each key's limits and its
// outage.
func TestPools_AloneDrawsAnyMember(t *testing.T) {
	r, err := Run(t.Context(), pooled(t, ""), Alone, 7)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Quotas {
		if r.Quotas[i].Total == 0 {
			t.Errorf("nothing of %s was used", r.Quotas[i].Quota)
		}
	}
	if r.Refused == 0 || r.Outage == 0 {
		t.Errorf("%d refused, %d by the outage", r.Refused, r.Outage)
	}
}

// TestPools_AreNotLive: calls with pools work in virtual time only, because an Outside does not report the granted member.
func TestPools_AreNotLive(t *testing.T) {
	if _, err := NewLive(pooled(t, ""), Governed, 1, nil); err == nil || !strings.Contains(err.Error(), "pools") {
		t.Errorf("%v", err)
	}
}

// TestPools_CallsWaitForEachMember: a call on a pool waits for each limit that could serve it, until it is sent.
func TestPools_CallsWaitForEachMember(t *testing.T) {
	f := pooled(t, "")
	w := newWorld(f, 1)
	w.populate(1)
	c := &call{agent: w.agents[0], uses: f.Agents[0].Uses, actual: []int64{1, 50}}
	c.wants = w.anyLimit(c)
	var names []string
	for _, limit := range c.wants {
		names = append(names, w.quotas[limit].Name)
	}
	if got := strings.Join(names, " "); got != "b/requests all b/tokens a/requests a/tokens" {
		t.Errorf("it waits for %s", got)
	}
	w.now = int64(time.Second)
	w.book.wanted(c)
	c.draws("b")
	w.now = int64(2 * time.Second)
	w.book.sent(c)
	for i, wanting := range w.book.wanting {
		if len(wanting) != 1 || wanting[0].to-wanting[0].from != int64(time.Second) || w.book.backlog[i] != 0 {
			t.Errorf("%s: %v", w.quotas[i].Name, wanting)
		}
	}
}
