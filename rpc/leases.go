package rpc

import (
	"strconv"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// maxScans bounds how many pages of leases are looked through for one page of those that the caller may see.
const maxScans = 16

// listLeases makes a page of leases that the caller may see. A page may be short, even empty, and not the last.
func (s *Server) listLeases(
	state *fsm.State, clock fsm.Clock, r *request, at raftnode.Position, req *quotav1.ListLeasesRequest,
) *quotav1.ListLeasesResponse {
	after, _ := parsePage(req.PageToken)
	size := pageSize(req.PageSize)
	res := &quotav1.ListLeasesResponse{Meta: s.meta(r, at)}
	present := s.node.Clock() // what is left is told by it: a lease may end with the next entry
	present.Now = max(present.Now, clock.Now)
	for range maxScans {
		views := state.Leases(req.Holder, req.Quota, after, size, clock)
		for i := range views {
			after = views[i].ID
			if r.who.mayActFor(views[i].Holder) == nil && len(res.Leases) < size {
				res.Leases = append(res.Leases, apiLeaseStatus(&views[i], clock, present))
			}
		}
		switch {
		case len(res.Leases) == size:
			res.NextPageToken = strconv.FormatUint(res.Leases[size-1].Id, 10)
			return res
		case len(views) < size:
			return res
		}
	}
	res.NextPageToken = strconv.FormatUint(after, 10)
	return res
}
