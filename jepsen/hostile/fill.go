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

// Shared are the state budgets of which an attack takes the caller's part, until it is refused more.
func Shared() []string {
	var all []string
	for _, k := range slices.Concat(sorts()...) {
		all = append(all, k.budget)
	}
	return all
}

// Crowded are the node budgets that only an attack of full size exhausts: streams by token, health watchers by address. No attack asks
// for a caller's part of a node's calls, connections or request bytes.
func Crowded() []string { return []string{"streams", "watchers"} }

// holder is the holder of its leases, except where each needs a name of its own.
const holder = history.Unrecorded + "filler"

// Filling is the longest time for which an attack fills the state budgets before it does anything else.
const Filling = 5 * time.Second

const (
	// atOnce is the number of commands in a Batch, manyAtOnce that of small ones. calls is the number of concurrent calls of kinds that take
	// one each. inARow bounds the rounds until the next kind has its turn.
	atOnce, manyAtOnce = 256, 1024
	calls              = 24
	inARow             = 16
)

// await waits for a group, at most for a given time.
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

// filler fills the state budgets that callers share, kind after kind.
type filler struct {
	*Caller
	quota quotav1connect.QuotaServiceClient
	task  quotav1connect.TaskServiceClient
	// name begins the names that it makes up; taken numbers them.
	name  string
	taken uint64
	// kinds are the budgets that it fills.
	kinds []kind
	// session keeps results, 0: none yet. lease has an operation, for reports; nil: none yet.
	session uint64
	lease   *quotav1.Lease
}

// kind is a way for a caller to fill one budget.
type kind struct {
	budget string
	// take takes some of it, and returns the budgets of the refusals.
	take func(f *filler, ctx context.Context) []string
}

// sorts are groups of kinds. The kinds of a group are filled one after the other, in an order in which each can be filled: keys before
// results, leases after the kinds that need some.
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

// filler returns a filler for some kinds.
func (a *Caller) filler(kinds []kind) *filler {
	return &filler{
		Caller: a, quota: quotav1connect.NewQuotaServiceClient(a.api, a.url()), task: quotav1connect.NewTaskServiceClient(a.api, a.url()),
		name: fmt.Sprintf(history.Unrecorded+"%s-%d", a.Name, rand.Uint32()), kinds: kinds, //nolint:gosec // a name
	}
}

// fill takes of each kind until a refusal names its budget, or for inARow rounds. Kinds without such a refusal so far come first.
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

// another is an unused name.
func (f *filler) another() string { return fmt.Sprintf("%s-%d", f.name, f.next()) }

// batch sends size commands at once, and returns the budgets of the refusals.
func (f *filler) batch(ctx context.Context, size int, command func() *quotav1.Command) (budgets []string) {
	request := &quotav1.BatchRequest{}
	for range size {
		request.Commands = append(request.Commands, command())
	}
	response, err := f.quota.Batch(ctx, request)
	f.reported(err)
	for _, result := range response.GetResults() {
		info := result.GetError().GetInfo()
		switch info.GetReason() {
		case quotav1.Reason_REASON_TOO_MANY_IN_FLIGHT, quotav1.Reason_REASON_UNKNOWN_SESSION:
			f.session = 0 // a session has at most an eighth of all results
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

// numbered is the ID of a request in the session, which it opens if needed; nil if that fails.
func (f *filler) numbered(ctx context.Context) *quotav1.RequestId {
	if f.session == 0 {
		res, err := f.quota.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: holder})
		f.reported(err)
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

// leaseFor is the length of its leases and waits.
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

// releases is a Release of a lease that does not exist: it costs nothing but its result.
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

// holds says whether there is a lease with an operation, for reports; it makes one if needed.
func (f *filler) holds(ctx context.Context) bool {
	if f.lease != nil {
		return true
	}
	request := reserves(holder, time.Minute, rateName)
	request.Consume = true
	res, err := f.quota.Reserve(ctx, request)
	f.reported(err)
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
	_ = f.numbered(ctx) // this makes the connection that the concurrent calls share
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

// each makes some concurrent calls, each with its own name, and returns the budgets of the refusals.
func (f *filler) each(do func(name string) error) (budgets []string) {
	var mu sync.Mutex
	var working sync.WaitGroup
	for range calls {
		name := f.another()
		working.Go(func() {
			err := do(name)
			f.reported(err)
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
