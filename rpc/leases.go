package rpc

import (
	"strconv"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// listLeases makes a page of leases that the caller may see. A page may be short, or even empty, without being the last one.
func (s *Server) listLeases(
	state *fsm.State, clock fsm.Clock, r *request, at raftnode.Position, req *quotav1.ListLeasesRequest,
) *quotav1.ListLeasesResponse {
	after, _ := parsePage(req.PageToken)
	res := &quotav1.ListLeasesResponse{Meta: s.meta(r, at)}
	present := s.node.Clock() // remaining times count from it: a lease may end with the next entry
	present.Now = max(present.Now, clock.Now)
	filter := fsm.LeaseFilter{Holder: req.Holder, Quota: req.Quota, Shown: r.who.covers}
	views, next := state.LeasePage(filter, after, pageSize(req.PageSize), clock)
	res.Leases = pageOf(views, func(v *fsm.LeaseView) *quotav1.LeaseStatus { return apiLeaseStatus(v, clock, present) })
	if sent := len(res.Leases); sent < len(views) {
		next = views[sent-1].ID
	}
	if next != 0 {
		res.NextPageToken = strconv.FormatUint(next, 10)
	}
	return res
}
