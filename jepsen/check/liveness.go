package check

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// recoverWithin is the time after the last fault within which each class must be granted something: three elections and the longest time
// between two attempts of a client.
const recoverWithin = 10 * time.Second

// outageBound is the longest time without a success while at most a minority is hurt: the worst failover, with the attempt timeout of a
// client that was connected to the failed node.
const outageBound = 5 * time.Second

// success says whether a call changed the log, even by a refusal: the cluster worked.
func (c *call) success() bool { return c.Error == nil && !c.read() }

// liveness judges the times at which calls succeeded.
func (r *run) liveness() {
	v := r.verdict("service",
		"With a majority that is well, calls succeed again within 5 s; after the last fault every class is granted something within 10 s.")
	var ends []int64
	for _, c := range r.calls {
		if c.success() {
			ends = append(ends, c.Returned)
		}
	}
	slices.Sort(ends)
	v.Checked = len(ends)
	r.stats.Answered = len(ends)
	for i := 1; i < len(ends); i++ {
		gap := time.Duration(ends[i] - ends[i-1])
		if gap > outageBound && !r.excused(ends[i-1], ends[i]) && gap-r.withoutMajority(ends[i-1], ends[i]) > outageBound {
			v.violate("no call succeeded for %v from %d on, though no fault took the majority", gap, ends[i-1])
		}
	}
	for _, fault := range r.faults {
		if fault.Broken != "" {
			v.violate("%s: %s", fault.Kind, fault.Broken)
		}
	}
	r.outages(ends)
	r.recovery(v)
	if r.facts.Unhealed != "" {
		v.violate("the cluster could not be healed: %s", r.facts.Unhealed)
	}
}

// excused says whether a fault that takes the service away overlaps an interval; its effect may last a while longer.
func (r *run) excused(from, to int64) bool {
	for _, fault := range r.faults {
		if fault.Unavailable && fault.Began < to && fault.Ended+int64(recoverWithin) > from {
			return true
		}
	}
	return false
}

// restartWithin is the time until a node takes part again after a fault that ended its process.
const restartWithin = 1500 * time.Millisecond

// withoutMajority returns for how much of an interval faults hurt so many nodes at once that no majority was left.
func (r *run) withoutMajority(from, to int64) time.Duration {
	type edge struct {
		at    int64
		nodes []string
		by    int
	}
	var edges []edge
	for _, fault := range r.faults {
		began, ended := max(fault.Began, from), min(fault.Ended+int64(restartWithin), to)
		if nodes := r.hurt(fault); len(nodes) > 0 && fault.Failed == "" && began < ended {
			edges = append(edges, edge{began, nodes, 1}, edge{ended, nodes, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	hosts := map[string]bool{}
	for _, node := range r.facts.Nodes {
		hosts[hostOf(node)] = true
	}
	var sum, last int64
	faults := map[string]int{}
	for _, e := range edges {
		if down := len(faults); 2*(len(hosts)-down) <= len(hosts) && e.at > last {
			sum += e.at - last
		}
		last = e.at
		for _, node := range e.nodes {
			if faults[node] += e.by; faults[node] == 0 {
				delete(faults, node)
			}
		}
	}
	return time.Duration(sum)
}

// hostOf is the host of a node: the successor of a replaced node runs on the same host.
func hostOf(node string) string {
	host, _, _ := strings.Cut(node, ".")
	return host
}

// bearable are faults during which a node still takes part in its cluster, or that keep away one node at a time.
var bearable = []string{
	"slow-", "clock-", "loss-", "delay", "transfer", "provider-", "pause-clients", "isolate-clients", "half-cut", "stalled-streams", "tls-",
	"hostile-", "gateway-", "restore-", "upgrade-", "downgrade-",
}

// hurt returns the hosts of the nodes that a fault keeps from taking part: its targets or, for faults of links, the node that all of them
// lead to or from.
func (r *run) hurt(fault *history.Fault) []string {
	if slices.ContainsFunc(bearable, func(word string) bool { return strings.HasPrefix(fault.Kind, word) }) {
		return nil
	}
	var hosts []string
	links := map[string]int{}
	count := 0
	for _, target := range fault.Targets {
		from, to, link := strings.Cut(target, ">")
		switch {
		case link:
			count++
			links[hostOf(from)]++
			links[hostOf(to)]++
		case slices.Contains(r.facts.Nodes, target) && !slices.Contains(hosts, hostOf(target)):
			hosts = append(hosts, hostOf(target))
		}
	}
	for host, times := range links {
		if times == count {
			hosts = append(hosts, host)
		}
	}
	slices.Sort(hosts)
	if count > 0 && len(hosts) > 1 {
		return nil // one link alone: each end works without the other
	}
	return hosts
}

// outages measures, for each fault, the longest time without a success that began while it lasted or just after.
func (r *run) outages(ends []int64) {
	r.stats.Outages = map[string][]float64{}
	for _, fault := range r.faults {
		if fault.Failed != "" {
			continue
		}
		at := sort.Search(len(ends), func(i int) bool { return ends[i] >= fault.Began })
		last := fault.Began
		if at > 0 {
			last = ends[at-1]
		}
		var longest int64
		for ; at < len(ends) && last < fault.Ended+int64(500*time.Millisecond); at++ {
			longest = max(longest, ends[at]-max(last, fault.Began))
			last = ends[at]
		}
		r.stats.Outages[fault.Kind] = append(r.stats.Outages[fault.Kind], float64(longest)/1e9)
	}
}

// recovery checks that each class is granted something soon after the last fault. In a run without faults, a long wait of the background
// class is due to the order of classes.
func (r *run) recovery(v *Verdict) {
	if r.facts.Mix == quiet {
		return
	}
	first := make(map[quotav1.Class]int64)
	for _, c := range r.calls {
		answer, ok := c.response.(*quotav1.ReserveResponse)
		if !ok || answer.GetLease() == nil || c.Sent < r.facts.Healed {
			continue
		}
		class := answer.GetLease().Class
		if at, ok := first[class]; !ok || c.Returned < at {
			first[class] = c.Returned
		}
	}
	for _, class := range [...]quotav1.Class{quotav1.Class_CLASS_CRITICAL, quotav1.Class_CLASS_STANDARD, quotav1.Class_CLASS_BACKGROUND} {
		at, ok := first[class]
		v.Checked++
		if !ok {
			v.violate("%v was granted nothing after the last fault", class)
			continue
		}
		took := time.Duration(at - r.facts.Healed)
		r.stats.Recovery = max(r.stats.Recovery, took.Seconds())
		if took > recoverWithin {
			v.violate("%v was granted something only %v after the last fault", class, took)
		}
	}
}

// hurried says whether clocks ran at a wrong rate in the run, so that cluster time may have been faster than real time.
func (r *run) hurried() bool {
	for _, fault := range r.faults {
		if strings.HasPrefix(fault.Kind, "clock-rate") && fault.Failed == "" {
			return true
		}
	}
	return false
}

// overlaps says whether a call was in flight during a fault.
func overlaps(c *call, fault *history.Fault) bool {
	return c.Sent < fault.Ended+1 && c.Returned > fault.Began
}
