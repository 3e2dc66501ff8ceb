package hostile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Shared are the budgets of the state of which a caller takes its part, and is refused more.
func Shared() []string {
	var all []string
	for _, k := range slices.Concat(sorts()...) {
		all = append(all, k.budget)
	}
	return all
}

// Crowded are the budgets of a node that only an attack of full size exhausts: streams by the token, watchers of health by the address.
func Crowded() []string { return []string{"streams", "watchers"} }

// holder is who holds what it takes, but for the names that it makes up.
const holder = history.Unrecorded + "filler"

// Filling is how long an attack at most takes of what callers share before it does anything else.
const Filling = 5 * time.Second

const (
	// atOnce is how many are taken in a call, manyAtOnce of what is small; calls is how many calls of those that take one each; inARow is how
	// often, at the most, before the next kind has its turn.
	atOnce, manyAtOnce = 256, 1024
	calls              = 24
	inARow             = 16
)

// await waits for all of a group, for a while.
func await(ctx context.Context, group *sync.WaitGroup, most time.Duration) {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(most):
	}
}

// filler takes of what callers share, kind after kind.
type filler struct {
	*Caller
	quota quotav1connect.QuotaServiceClient
	task  quotav1connect.TaskServiceClient
	// name begins the names that it makes up; taken numbers them.
	name  string
	taken uint64
	// kinds are what it takes.
	kinds []kind
	// session keeps results, 0: there is none yet. lease has an operation, for reports; nil: there is none yet.
	session uint64
	lease   *quotav1.Lease
}

// kind is how a caller takes of one budget.
type kind struct {
	budget string
	// take takes some, and returns the budgets that it was refused for.
	take func(f *filler, ctx context.Context) []string
}

// sorts are the kinds that are taken one after the other, in an order in which each can be filled: keys before what fills the results,
// leases after what takes some.
func sorts() [][]kind {
	return [][]kind{
		{{"waiters", (*filler).waits}, {"keys", (*filler).keys}, {"result_bytes", (*filler).results}},
		{
			{"operation_bytes", (*filler).operations},
			{"reports", (*filler).reports},
			{"holder_bytes", (*filler).names},
			{"leases", (*filler).leases},
		},
		{{"sessions", (*filler).sessions}, {"tasks", (*filler).tasks}},
	}
}

// filler takes of some kinds.
func (a *Caller) filler(kinds []kind) *filler {
	return &filler{
		Caller: a, quota: quotav1connect.NewQuotaServiceClient(a.api, a.url()), task: quotav1connect.NewTaskServiceClient(a.api, a.url()),
		name: fmt.Sprintf(history.Unrecorded+"%s-%d", a.Name, rand.Uint32()), kinds: kinds, //nolint:gosec // a name
	}
}

// fill takes of each kind until it is refused more by the budget's name, or has tried often enough. Kinds of which that has not happened
// yet come first.
func (f *filler) fill(ctx context.Context) {
	missing := slices.DeleteFunc(slices.Clone(f.kinds), func(k kind) bool { return f.wasRefused(k.budget) })
	if len(missing) == 0 {
		missing = f.kinds
	}
	for _, k := range missing {
		for n, full := 0, false; n < inARow && !full && ctx.Err() == nil; n++ {
			full = slices.Contains(k.take(f, ctx), k.budget)
		}
	}
}

// next is a number that the filler has not used yet.
func (f *filler) next() uint64 {
	f.taken++
	return f.taken
}

// another is a name that nobody has used yet.
func (f *filler) another() string { return fmt.Sprintf("%s-%d", f.name, f.next()) }

// batch sends so many commands at once, and returns the budgets that some were refused for.
func (f *filler) batch(ctx context.Context, size int, command func() *quotav1.Command) (budgets []string) {
	request := &quotav1.BatchRequest{}
	for range size {
		request.Commands = append(request.Commands, command())
	}
	response, err := f.quota.Batch(ctx, request)
	f.told(err)
	for _, result := range response.GetResults() {
		info := result.GetError().GetInfo()
		switch info.GetReason() {
		case quotav1.Reason_REASON_TOO_MANY_IN_FLIGHT, quotav1.Reason_REASON_UNKNOWN_SESSION:
			f.session = 0 // a session has an eighth of all results at most
		case quotav1.Reason_REASON_STALE_FENCE:
			f.lease = nil
		default:
		}
		for _, budget := range []string{info.GetBudget(), result.GetReserve().GetRefusal().GetBudget()} {
			if budget != "" {
				f.refusedFor(budget)
				budgets = append(budgets, budget)
			}
		}
	}
	return budgets
}

// numbered is the id of a request in the session, which is opened where there is none; nil where it cannot be.
func (f *filler) numbered(ctx context.Context) *quotav1.RequestId {
	if f.session == 0 {
		res, err := f.quota.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: holder})
		f.told(err)
		if f.session = res.GetSession(); f.session == 0 {
			return nil
		}
	}
	return &quotav1.RequestId{Session: f.session, Seq: f.next()}
}

func reserves(holder string, ttl time.Duration, quotas ...string) *quotav1.ReserveRequest {
	r := &quotav1.ReserveRequest{Holder: holder, Ttl: durationpb.New(ttl)}
	for _, quota := range quotas {
		r.Items = append(r.Items, &quotav1.Item{Quota: quota})
	}
	return r
}

func inBatch(r *quotav1.ReserveRequest) *quotav1.Command {
	return &quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: r}}
}

// leaseFor is how long what it takes is held.
const leaseFor = 10 * time.Second

func (f *filler) waits(ctx context.Context) []string {
	if f.numbered(ctx) == nil {
		return nil
	}
	return f.batch(ctx, atOnce, func() *quotav1.Command {
		r := reserves(holder, leaseFor, quotaName)
		r.Items[0].Amount = new(int64(quotaSlots))
		r.RequestId, r.Wait = &quotav1.RequestId{Session: f.session, Seq: f.next()}, durationpb.New(leaseFor)
		return inBatch(r)
	})
}

func (f *filler) names(ctx context.Context) []string {
	return f.batch(ctx, atOnce, func() *quotav1.Command { return inBatch(reserves(f.another(), time.Second, rateName)) })
}

func (f *filler) leases(ctx context.Context) []string {
	return f.batch(ctx, manyAtOnce, func() *quotav1.Command { return inBatch(reserves(holder, leaseFor, rateName)) })
}

func (f *filler) results(ctx context.Context) []string {
	if f.numbered(ctx) == nil {
		return nil
	}
	return f.batch(ctx, manyAtOnce, func() *quotav1.Command {
		return releases(&quotav1.RequestId{Session: f.session, Seq: f.next()})
	})
}

func (f *filler) keys(ctx context.Context) []string {
	return f.batch(ctx, atOnce, func() *quotav1.Command { return releases(&quotav1.RequestId{IdempotencyKey: f.another()}) })
}

// releases gives a lease back that does not exist, which costs nothing but its result.
func releases(id *quotav1.RequestId) *quotav1.Command {
	return &quotav1.Command{Kind: &quotav1.Command_Release{Release: &quotav1.ReleaseRequest{RequestId: id, Lease: 1 << 40, Fence: 1 << 40}}}
}

func (f *filler) operations(ctx context.Context) []string {
	return f.batch(ctx, manyAtOnce, func() *quotav1.Command {
		r := reserves(holder, time.Second, rateName)
		r.Consume = true
		return inBatch(r)
	})
}

// holds tells whether there is a lease with an operation, for reports.
func (f *filler) holds(ctx context.Context) bool {
	if f.lease != nil {
		return true
	}
	request := reserves(holder, time.Minute, rateName)
	request.Consume = true
	res, err := f.quota.Reserve(ctx, request)
	f.told(err)
	f.lease = res.GetLease()
	return f.lease != nil
}

func (f *filler) reports(ctx context.Context) []string {
	if !f.holds(ctx) {
		return nil
	}
	lease := f.lease
	return f.batch(ctx, atOnce, func() *quotav1.Command {
		return &quotav1.Command{Kind: &quotav1.Command_Report{Report: &quotav1.ReportRequest{
			Lease: lease.Id, Fence: lease.Fence, Op: 1, Signals: []*quotav1.Signal{{Quota: rateName, Cause: quotav1.Cause_CAUSE_OK}},
		}}}
	})
}

func (f *filler) sessions(ctx context.Context) []string {
	_ = f.numbered(ctx) // which makes the connection that the many then share
	return f.each(func(name string) error {
		_, err := f.quota.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: name})
		return err
	})
}

func (f *filler) tasks(ctx context.Context) []string {
	return f.each(func(name string) error {
		_, err := f.task.BeginTask(ctx, &quotav1.BeginTaskRequest{Task: name, Holder: holder})
		return err
	})
}

// each makes some calls at once, each with a name of its own, and returns the budgets that some were refused for.
func (f *filler) each(do func(name string) error) (budgets []string) {
	var mu sync.Mutex
	var working sync.WaitGroup
	for range calls {
		name := f.another()
		working.Go(func() {
			err := do(name)
			f.told(err)
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			budgets = append(budgets, history.ErrorOf(err).Budget)
		})
	}
	working.Wait()
	return budgets
}
