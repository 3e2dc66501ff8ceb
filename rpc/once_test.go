package rpc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

const onceWorkers = 16

// onceOf returns how many commands to send, and how many leaders to kill meanwhile.
func onceOf() (commands, kills int64) {
	if testing.Short() {
		return 800, 2
	}
	return 10_000, 5
}

// TestCommands_AreAppliedOnce: sixteen callers send thousands of commands of every kind that takes or returns quota, to any node, while
// leaders die. Each is sent until its outcome is known, and then once more to another node. Both answers are the same, and the ledger
// counts each command once.
func TestCommands_AreAppliedOnce(t *testing.T) {
	nodes := newNodes(t, 3)
	// Returned amounts must arrive by the spend-by, however long the nodes take.
	const quotas = `{"quotas":[{"name":"w","rate":{"limit":1000000000,"per":"86400s"},"spendBy":"3600s"},
		{"name":"busy","slots":{"limit":1,"grace":"1s"}},{"name":"mine","slots":{"limit":1000}}]}`
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", quotas); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var done atomic.Int64
	var spent atomic.Int64
	var workers sync.WaitGroup
	for i := range onceWorkers {
		w := &resender{t: t, random: rand.New(rand.NewPCG(seed, uint64(i))), done: &done, name: fmt.Sprintf("holder-%d", i)}
		for _, n := range nodes {
			w.apis = append(w.apis, quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url))
		}
		workers.Go(func() { spent.Add(w.run()) })
	}
	finished := make(chan struct{})
	go func() { workers.Wait(); close(finished) }()
	killLeaders(t, nodes, &done, finished)
	<-finished
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, nodes[0].url, persistent)
	show := func(name string) *quotav1.QuotaStatus {
		res, err := api.GetQuota(t.Context(), &quotav1.GetQuotaRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return res.Quota
	}
	// A slot that a waiter fetched too late, as on a busy machine, counts for a grace after that.
	eventually(t, "no slot is in its grace", func() bool { return show("busy").Consumed == 0 })
	for _, name := range []string{"w", "busy", "mine"} {
		want := int64(0)
		if name == "w" {
			want = spent.Load()
		}
		if q := show(name); q.Consumed != want || q.Held != 0 || q.Leases != 0 || q.Waiting != 0 {
			t.Errorf("%s: %d consumed, %d held, %d leases, %d wait; %d were consumed", name, q.Consumed, q.Held, q.Leases, q.Waiting, want)
		}
	}
	if commands, _ := onceOf(); done.Load() < commands {
		t.Errorf("only %d commands", done.Load())
	}
}

// killLeaders kills leaders one after the other, evenly spread over the work, and restarts each.
func killLeaders(t *testing.T, nodes []*testNode, done *atomic.Int64, finished <-chan struct{}) {
	t.Helper()
	commands, kills := onceOf()
	for i := range kills {
		for done.Load() < (i+1)*commands/(kills+1) {
			select {
			case <-finished:
				t.Error("the work ended before the last kill")
				return
			case <-time.After(time.Millisecond):
			}
		}
		leader, _ := leaderAndFollower(t, nodes)
		nodes[leader].kill()
		nodes[leader].again(t)
	}
}

// resender is a caller that sends everything at least twice.
type resender struct {
	t      *testing.T
	random *rand.Rand
	apis   []quotav1connect.QuotaServiceClient
	done   *atomic.Int64
	name   string
	// session and seq number its requests. A request is acknowledged only after its last answer was compared.
	session, seq uint64
}

// run works until all commands are done, and returns what it consumed and did not return.
func (w *resender) run() (spent int64) {
	w.open()
	for commands, _ := onceOf(); w.done.Load() < commands; {
		spent += w.life()
		w.wait()
	}
	return spent
}

// open opens a session. A session whose answer was lost stays open, unused.
func (w *resender) open() {
	for {
		res, err := w.any().OpenSession(w.t.Context(), &quotav1.OpenSessionRequest{Holder: w.name})
		if err == nil {
			w.session = res.Session
			return
		}
		w.pause()
	}
}

// life takes a lease through its whole life.
func (w *resender) life() int64 {
	amount := 2 + w.random.Int64N(8)
	granted := once(w, quotav1connect.QuotaServiceClient.Reserve, &quotav1.ReserveRequest{
		RequestId: w.id(), Holder: w.name, Ttl: durationpb.New(time.Hour),
		Items: []*quotav1.Item{{Quota: "w", Amount: &amount}, {Quota: "mine"}},
	}).GetLease()
	if granted == nil {
		w.t.Error("not granted")
		return 0
	}
	used := 1 + w.random.Int64N(amount-1)
	once(w, quotav1connect.QuotaServiceClient.Consume, &quotav1.ConsumeRequest{
		RequestId: w.id(), Lease: granted.Id, Fence: granted.Fence, Op: 1, Items: []*quotav1.Item{{Quota: "w", Amount: &used}},
	})
	once(w, quotav1connect.QuotaServiceClient.Renew, &quotav1.RenewRequest{
		RequestId: w.id(), Lease: granted.Id, Fence: granted.Fence, Ttl: durationpb.New(2 * time.Hour),
	})
	back := w.random.Int64N(used)
	if back > 0 {
		once(w, quotav1connect.QuotaServiceClient.Settle, &quotav1.SettleRequest{
			RequestId: w.id(), Lease: granted.Id, Fence: granted.Fence, Op: 1, Unspent: []*quotav1.Item{{Quota: "w", Amount: &back}},
		})
	}
	once(w, quotav1connect.QuotaServiceClient.Report, &quotav1.ReportRequest{
		RequestId: w.id(), Lease: granted.Id, Fence: granted.Fence, Op: 1,
		Signals: []*quotav1.Signal{{Quota: "w", Cause: quotav1.Cause_CAUSE_OK}},
	})
	once(w, quotav1connect.QuotaServiceClient.Release, &quotav1.ReleaseRequest{
		RequestId: w.id(), Lease: granted.Id, Fence: granted.Fence,
	})
	return used - back
}

// wait asks for the one slot, and leaves the queue or releases the slot.
func (w *resender) wait() {
	ask := &quotav1.ReserveRequest{
		RequestId: w.id(), Holder: w.name, Ttl: durationpb.New(time.Hour), Items: []*quotav1.Item{{Quota: "busy"}},
		Wait: durationpb.New(5 * time.Minute), NoBlock: true,
	}
	res := w.send(func(api quotav1connect.QuotaServiceClient) (proto.Message, error) {
		return api.Reserve(w.t.Context(), ask)
	})
	outcome, _ := res.(*quotav1.ReserveResponse)
	if ticket := outcome.GetWaiting(); ticket != nil {
		withdraw := &quotav1.WithdrawRequest{RequestId: w.id(), Ticket: ticket.Ticket}
		w.send(func(api quotav1connect.QuotaServiceClient) (proto.Message, error) {
			return api.Withdraw(w.t.Context(), withdraw)
		})
		// The queue has moved meanwhile: the first request's id now tells whether it was withdrawn or granted.
		res = w.send(func(api quotav1connect.QuotaServiceClient) (proto.Message, error) {
			return api.Reserve(w.t.Context(), ask)
		})
		outcome, _ = res.(*quotav1.ReserveResponse)
	}
	if lease := outcome.GetLease(); lease != nil {
		release := &quotav1.ReleaseRequest{RequestId: w.id(), Lease: lease.Id, Fence: lease.Fence}
		w.send(func(api quotav1connect.QuotaServiceClient) (proto.Message, error) {
			return api.Release(w.t.Context(), release)
		})
	}
}

// id numbers the next request. All earlier ones are done.
func (w *resender) id() *quotav1.RequestId {
	w.seq++
	w.done.Add(1)
	return &quotav1.RequestId{Session: w.session, Seq: w.seq, AckedBelow: max(w.seq, 2) - 2}
}

// once sends a request until its outcome is known, and once more, and compares the answers.
func once[Req, Res proto.Message](
	w *resender, method func(quotav1connect.QuotaServiceClient, context.Context, Req) (Res, error), req Req,
) Res {
	w.t.Helper()
	ask := func(api quotav1connect.QuotaServiceClient) (proto.Message, error) {
		return method(api, w.t.Context(), req)
	}
	first, second := w.send(ask), w.send(ask)
	if decision(first) != decision(second) {
		w.t.Errorf("the same request was answered differently:\n%v\n%v", first, second)
	}
	var none Res
	if typed, ok := first.(Res); ok {
		return typed
	}
	return none
}

// send sends a request to one node after the other until its outcome is known: an answer, or the reason of an error.
func (w *resender) send(ask func(quotav1connect.QuotaServiceClient) (proto.Message, error)) proto.Message {
	for w.t.Context().Err() == nil {
		res, err := ask(w.any())
		if err == nil {
			return res
		}
		switch info := infoOf(err); {
		case info == nil, info.NotAccepted, info.Reason == quotav1.Reason_REASON_UNKNOWN_OUTCOME, info.Reason == quotav1.Reason_REASON_STOPPING:
			w.pause()
		default:
			return info
		}
	}
	return &quotav1.ErrorInfo{}
}

func (w *resender) any() quotav1connect.QuotaServiceClient { return w.apis[w.random.IntN(len(w.apis))] }

func (w *resender) pause() { <-time.After(time.Duration(1+w.random.IntN(10)) * time.Millisecond) }

// decision returns the content of an answer, without place and time, and without remaining durations.
func decision(message proto.Message) string {
	message = proto.Clone(message)
	strip(message.ProtoReflect())
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	return fmt.Sprintf("%s %x %v", message.ProtoReflect().Descriptor().Name(), encoded, err)
}

func strip(message protoreflect.Message) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil, field.IsMap():
		case field.Name() == "meta", field.Message().FullName() == "google.protobuf.Duration":
			message.Clear(field)
		case field.IsList():
			for i := range value.List().Len() {
				strip(value.List().Get(i).Message())
			}
		default:
			strip(value.Message())
		}
		return true
	})
}
