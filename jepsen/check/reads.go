package check

import "github.com/quotad/quotad/rpc/quotav1"

// reads compares what reads showed with the replayed state at the index that they name.
func (r *run) reads(rep *replayed) {
	v := r.verdict("reads", "A read shows the state at the index that it names.")
	for _, c := range r.calls {
		answer, ok := c.response.(*quotav1.GetQuotaResponse)
		if !ok || answer == nil {
			continue
		}
		v.Looked++
		status := answer.Quota
		view := rep.views[viewKey{answer.Meta.Index, status.Definition.Name}]
		if view == nil {
			v.violate("GetQuota by %s shows %s at index %d, which no node applied", c.Client, status.Definition.Name, answer.Meta.Index)
			continue
		}
		if view.Held != status.Held || view.Leases != status.Leases || view.Waiting != status.Waiting || view.Usable != status.Usable {
			v.violate("GetQuota by %s at index %d shows %s with held %d, leases %d, waiting %d, usable %d; the log has %d, %d, %d, %d",
				c.Client, answer.Meta.Index, status.Definition.Name, status.Held, status.Leases, status.Waiting, status.Usable,
				view.Held, view.Leases, view.Waiting, view.Usable)
		}
		// Windows move on by Unix time also where no entry is written.
		if status.Definition.GetWindow() == nil && (view.Consumed != status.Consumed || view.Available != status.Available) {
			v.violate("GetQuota by %s at index %d shows %s with consumed %d, available %d; the log has %d, %d: it looked at a time that no entry carries",
				c.Client, answer.Meta.Index, status.Definition.Name, status.Consumed, status.Available, view.Consumed, view.Available)
		}
	}
}
