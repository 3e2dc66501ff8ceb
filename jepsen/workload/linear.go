package workload

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// The quotas whose short histories are searched for a linear order.
const (
	// LinearQuotas is their number, LinearSlots the number of slots of each.
	LinearQuotas = 100
	LinearSlots  = 3
	// LinearTTL is the length of each of their leases, LinearGrace how long an expired one still counts.
	LinearTTL   = 2 * time.Second
	LinearGrace = 200 * time.Millisecond
	// linearSpan is how long a quota is in use: long enough for leases to expire, short enough for the search.
	linearSpan = 6 * time.Second
)

// Linear is the name of such a quota.
func Linear(number int) string { return fmt.Sprintf("linear/%03d", number) }

// linear takes, releases and reads one quota after the other, all actors the same one.
func linear(ctx context.Context, w *worker, number int) {
	c := w.caller(number)
	var leases []*quotav1.Lease
	for w.rest(ctx, c.rand) {
		name := Linear(int(history.Now()/int64(linearSpan)) % LinearQuotas)
		if len(leases) > 0 && leases[0].Items[0].Quota != name {
			leases = nil // their ends belong to the history of their own quota
		}
		switch {
		case c.rand.IntN(100) < 35:
			c.at = c.rand.IntN(len(c.services))
			_, _ = attempt(ctx, c, service.GetQuota, &quotav1.GetQuotaRequest{Name: name}, 0)
		case len(leases) > 0 && c.rand.IntN(100) < 50:
			lease := leases[0]
			leases = leases[1:]
			_, _ = call(ctx, c, service.Release, &quotav1.ReleaseRequest{RequestId: c.id(ctx), Lease: lease.Id, Fence: lease.Fence}, 0)
		default:
			res, err := call(ctx, c, service.Reserve, &quotav1.ReserveRequest{
				RequestId: c.id(ctx), Holder: c.holder, Ttl: durationpb.New(LinearTTL),
				Items: []*quotav1.Item{{Quota: name, Amount: new(int64(1))}},
			}, 0)
			if err == nil && res.GetLease() != nil {
				leases = append(leases, res.GetLease())
			}
		}
	}
}
