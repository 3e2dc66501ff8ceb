package check

import (
	"sort"

	"github.com/quotad/quotad/rpc/quotav1"
)

// highest is the largest index that a call's answer names; 0: none.
func (c *call) highest() uint64 {
	var index uint64
	for i := range c.parts {
		if c.parts[i].meta != nil {
			index = max(index, c.parts[i].meta.Index)
		}
	}
	return index
}

// lowest is the smallest index that a call's answer names; 0: none.
func (c *call) lowest() uint64 {
	var index uint64
	for i := range c.parts {
		if c.parts[i].meta != nil && (index == 0 || c.parts[i].meta.Index < index) {
			index = c.parts[i].meta.Index
		}
	}
	return index
}

// realTime checks that a call that ended before another began precedes it in the log, reads included. Together with the check of answers
// this is strict serializability.
func (r *run) realTime() {
	v := r.verdict("real-time", "A call that begins after another was answered takes effect after it, or shows its effect (reads too).")
	var ended []*call
	for _, c := range r.calls {
		if c.highest() != 0 {
			ended = append(ended, c)
		}
	}
	sort.SliceStable(ended, func(i, j int) bool { return ended[i].Returned < ended[j].Returned })
	var newest uint64
	var witness *call
	at := 0
	for _, c := range r.calls { // by the time they were sent
		for at < len(ended) && ended[at].Returned < c.Sent {
			if index := ended[at].highest(); index > newest {
				newest, witness = index, ended[at]
			}
			at++
		}
		if index := c.lowest(); index != 0 {
			v.Checked++
			if index < newest {
				v.violate("%s by %s (index %d, sent %d) began %.3f ms after %s by %s was answered with index %d",
					c.Procedure, c.Client, index, c.Sent, float64(c.Sent-witness.Returned)/1e6, witness.Procedure, witness.Client, newest)
			}
		}
	}
}

// leaders checks that all answers of one term come from one node.
func (r *run) leaders() {
	v := r.verdict("one-leader", "In one term one node answers as the leader.")
	leader := map[uint64]string{}
	for _, c := range r.calls {
		if c.read() || waited(c) {
			continue // a read names the entry that it shows, and the leader of an earlier term may report the end of a wait
		}
		for i := range c.parts {
			meta := c.parts[i].meta
			if meta == nil || meta.Term == 0 {
				continue
			}
			v.Checked++
			if known, ok := leader[meta.Term]; ok && known != meta.Node {
				v.violate("term %d was led by %s and by %s", meta.Term, known, meta.Node)
			}
			leader[meta.Term] = meta.Node
		}
	}
	r.stats.Terms = len(leader)
}

// waited says whether a command of a call was ready to wait.
func waited(c *call) bool {
	if batch, ok := c.request.(*quotav1.BatchRequest); ok {
		for _, command := range batch.Commands {
			if command.GetReserve().GetWait() != nil {
				return true
			}
		}
	}
	reserve, ok := c.request.(*quotav1.ReserveRequest)
	return ok && reserve.Wait != nil
}

// clusterTime checks that cluster time never runs faster than real time, so that no lease ends early. It allows 1 % of clock drift, and 50
// ms since a stamp is older than its answer.
func (r *run) clusterTime() {
	v := r.verdict("cluster-time", "Cluster time never runs faster than time (1 % of drift aside), under every leader.")
	if r.hurried() {
		v.Checked++ // the runs of that fault check the bounds of the rate guard instead
		return
	}
	type point struct{ now, sent, returned int64 }
	var points []point
	for _, c := range r.calls {
		for i := range c.parts {
			if meta := c.parts[i].meta; meta != nil && meta.ClusterTime != nil && !c.read() {
				points = append(points, point{nanos(meta.ClusterTime), c.Sent, c.Returned})
			}
		}
	}
	sort.SliceStable(points, func(i, j int) bool { return points[i].now < points[j].now })
	const slack = 50_000_000
	var best point
	for i, p := range points {
		v.Checked++
		if i > 0 {
			elapsed := p.returned - best.sent
			if p.now-best.now > elapsed+elapsed/100+slack {
				v.violate("cluster time ran %d ns between %d and %d, real time %d ns", p.now-best.now, best.now, p.now, elapsed)
			}
		}
		// The point at which cluster time was furthest behind gives the tightest bound.
		if i == 0 || p.now-p.sent < best.now-best.sent {
			best = p
		}
	}
}
