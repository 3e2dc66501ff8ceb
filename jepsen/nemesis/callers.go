package nemesis

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/jepsen/canary"
	"github.com/quotad/quotad/jepsen/cluster"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// endsWithin is how long a call that was handed on to a leader may go on once that has stopped: the pings of its connection (ten
// seconds), or an election and the hold for a new leader, and what a busy machine adds.
const endsWithin = 20 * time.Second

// stoppedLeader stops the leader with SIGSTOP while calls through the other nodes are under way, which have all the time in the world:
// each has to end all the same.
func stoppedLeader() Fault {
	return Fault{Name: "stopped-leader-with-forwarded-calls", do: func(ctx context.Context, e *Env, _ *rand.Rand, hold func(context.Context)) (hit, error) {
		leader, others, err := e.leader(ctx)
		if err != nil {
			return hit{}, err
		}
		h := hit{targets: names(leader)}
		var stopped atomic.Bool
		var open atomic.Int64
		var mu sync.Mutex
		var longest time.Duration
		calling, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		var calls sync.WaitGroup
		for _, node := range others {
			for range 8 {
				calls.Go(func() {
					for calling.Err() == nil && !stopped.Load() {
						began := time.Now()
						open.Add(1)
						_, _ = node.Quota().Release(calling, neverIssued)
						open.Add(-1)
						mu.Lock()
						longest = max(longest, time.Since(began))
						mu.Unlock()
					}
				})
			}
		}
		wait(ctx, 200*time.Millisecond) // all of them are at it
		if err := leader.Pause(); err != nil {
			return h, err
		}
		under := open.Load()
		stopped.Store(true)
		ended := make(chan struct{})
		go func() {
			calls.Wait()
			close(ended)
		}()
		select {
		case <-ended:
			hold(ctx)
		case <-time.After(endsWithin):
			err = brokenError(fmt.Sprintf("%d calls through followers go on %v after the leader stopped", open.Load(), endsWithin))
			stop()
			<-ended
		}
		_ = leader.Resume() // it may have been killed meanwhile by another fault
		h.seen = fmt.Sprintf("%d calls under way, the longest took %v", under, longest.Round(time.Millisecond))
		if under == 0 {
			return h, errNotSeen
		}
		return h, err
	}}
}

// neverIssued is a call that goes through the log and changes nothing.
var neverIssued = &quotav1.ReleaseRequest{Lease: 1 << 40, Fence: 1 << 40}

// HostileQuota is what the hostile caller takes, and waits for in vain.
func HostileQuota() *quotav1.Quota {
	return &quotav1.Quota{Name: hostileQuota, Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: hostileSlots}}}
}

const (
	hostileQuota = "hostile"
	hostileSlots = 100
)

// SmallBudgets are bounds that a hostile caller reaches within a fault's time, and the workload does not.
func SmallBudgets() *quotav1.Limits {
	return &quotav1.Limits{MaxSessions: new(int64(4000)), MaxTasks: new(int64(400))}
}

// operatorWithin is ten times what an operator is promised while callers fill everything: the machine is busy besides.
const operatorWithin = 10 * time.Second

// hostile has one caller, with a token of its own that may use, report and read, take what it can of all that callers share, while
// strangers pack bombs, hold silent connections and send slow bodies, at every node. The service's verdict says whether others were served;
// here an operator asks for health and changes an override all the while.
func hostile() Fault {
	return Fault{Name: "hostile-caller", do: func(ctx context.Context, e *Env, _ *rand.Rand, hold func(context.Context)) (hit, error) {
		nodes, _ := all(ctx, e, nil)
		h := hit{}
		flood, stop := context.WithCancel(context.WithoutCancel(ctx))
		var calls, refused atomic.Int64
		var working sync.WaitGroup
		for i, node := range nodes {
			a := &attacker{node: node, dial: e.Dial, calls: &calls, refused: &refused}
			plain, http2 := &http.Transport{DialContext: e.Dial}, new(http.Protocols)
			http2.SetUnencryptedHTTP2(true)
			short, long := &http.Transport{DialContext: e.Dial, Protocols: http2}, &http.Transport{DialContext: e.Dial, Protocols: http2}
			a.stranger = &http.Client{Transport: plain}
			a.api, a.held = &http.Client{Transport: &canary.Carry{Secret: e.Hostile, Next: short}}, &http.Client{Transport: &canary.Carry{Secret: e.Hostile, Next: long}}
			defer short.CloseIdleConnections()
			defer long.CloseIdleConnections()
			works := append(slices.Repeat([]func(context.Context, int){a.fill}, 16), a.wait, a.watch, a.bomb, a.silent, a.slow)
			for _, work := range works {
				working.Go(func() {
					for n := i; flood.Err() == nil; n += len(nodes) {
						work(flood, n)
					}
				})
			}
			defer plain.CloseIdleConnections()
		}
		operating := make(chan error, 1)
		go func() { operating <- operate(flood, e) }()
		hold(ctx)
		stop()
		working.Wait()
		err := <-operating
		h.seen = fmt.Sprintf("%d calls, %d refused for a budget", calls.Load(), refused.Load())
		for _, node := range nodes {
			h.targets = append(h.targets, node.ID+"<hostile")
		}
		if err == nil && refused.Load() == 0 {
			err = errNotSeen
		}
		return h, err
	}}
}

// operate carries an operator's command out again and again. It returns a brokenError when one took too long.
func operate(ctx context.Context, e *Env) error {
	for n := 0; ctx.Err() == nil; n++ {
		began := time.Now()
		for tried := 0; ; tried++ {
			leader, err := e.Cluster.Leader(context.WithoutCancel(ctx))
			if err == nil {
				call, cancel := context.WithTimeout(context.WithoutCancel(ctx), operatorWithin)
				_, err = leader.Admin().SetLimits(call, &quotav1.SetLimitsRequest{Limits: &quotav1.Limits{TaskLife: durationpb.New(7 * 24 * time.Hour)}})
				cancel()
			}
			if took := time.Since(began); err == nil || took > operatorWithin {
				if took > operatorWithin {
					return brokenError(fmt.Sprintf("an operator's command took %v: %v", took.Round(time.Millisecond), err))
				}
				break
			}
			wait(ctx, 50*time.Millisecond)
		}
		wait(ctx, 200*time.Millisecond)
	}
	return nil
}

// attacker is the hostile caller at one node.
type attacker struct {
	node *cluster.Node
	// api and held, for calls that stay open, send the hostile token, stranger none.
	api, held      *http.Client
	stranger       *http.Client
	dial           func(ctx context.Context, network, address string) (net.Conn, error)
	calls, refused *atomic.Int64
}

func (a *attacker) told(err error) {
	a.calls.Add(1)
	if err == nil {
		return
	}
	switch quotav1.Reason(history.ErrorOf(err).Reason) {
	case quotav1.Reason_REASON_CALLER_BUDGET, quotav1.Reason_REASON_BUDGET_FULL:
		a.refused.Add(1)
	default: // the fault's end, or another fault's
	}
}

func (a *attacker) url() string { return "http://" + a.node.API }

// fill takes a session, a task, an idempotency key, and says that it reports.
func (a *attacker) fill(ctx context.Context, n int) {
	quota, task := quotav1connect.NewQuotaServiceClient(a.api, a.url()), quotav1connect.NewTaskServiceClient(a.api, a.url())
	name := fmt.Sprintf(history.Unrecorded+"%s-%d-%d", a.node.ID, n, rand.Uint32()) //nolint:gosec // a name
	_, err := quota.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: name})
	a.told(err)
	for i := range 8 {
		_, err = task.BeginTask(ctx, &quotav1.BeginTaskRequest{Task: fmt.Sprint(name, i), Holder: name})
		a.told(err)
	}
	_, err = quota.Release(ctx, &quotav1.ReleaseRequest{RequestId: &quotav1.RequestId{IdempotencyKey: name}, Lease: 1 << 40, Fence: 1 << 40})
	a.told(err)
	res, err := quota.Reserve(ctx, &quotav1.ReserveRequest{
		Holder: name, Items: []*quotav1.Item{{Quota: hostileQuota}}, Ttl: durationpb.New(10 * time.Second),
	})
	a.told(err)
	if refusal := res.GetRefusal(); refusal.GetBudget() != "" {
		a.refused.Add(1)
	}
}

// wait holds calls open, many at a time.
func (a *attacker) wait(ctx context.Context, n int) {
	quota := quotav1connect.NewQuotaServiceClient(a.held, a.url())
	var waits sync.WaitGroup
	for i := range 200 {
		waits.Go(func() {
			_, err := quota.Reserve(ctx, &quotav1.ReserveRequest{
				Holder: fmt.Sprintf("hostile-%d-%d", n, i), Items: []*quotav1.Item{{Quota: hostileQuota, Amount: new(int64(hostileSlots))}}, Wait: durationpb.New(2 * time.Second),
			})
			a.told(err)
		})
	}
	waits.Wait()
}

// watch holds streams open.
func (a *attacker) watch(ctx context.Context, _ int) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	quota := quotav1connect.NewQuotaServiceClient(a.held, a.url())
	var streams sync.WaitGroup
	for range 100 {
		streams.Go(func() {
			stream, err := quota.Watch(ctx, &quotav1.WatchRequest{})
			a.told(err)
			if err == nil {
				for stream.Receive() {
				}
				_ = stream.Close()
			}
		})
	}
	streams.Wait()
}

// bombs are 64 MiB of zeros, packed.
var bombs = sync.OnceValue(func() []byte {
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	zeros := make([]byte, 1<<20)
	for range 64 {
		_, _ = zip.Write(zeros) // into memory
	}
	_ = zip.Close()
	return packed.Bytes()
})

// bomb sends without a token what is large when it is unpacked.
func (a *attacker) bomb(ctx context.Context, n int) {
	path := []string{"/grpc.health.v1.Health/Check", "/quota.v1.QuotaService/Batch", "/quota.v1.AdminService/GetStatus"}[n%3]
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url()+path, bytes.NewReader(bombs()))
	if err != nil {
		return
	}
	request.Header.Set("Content-Type", "application/proto")
	request.Header.Set("Content-Encoding", "gzip")
	response, err := a.stranger.Do(request)
	if err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
		_ = response.Body.Close()
	}
	a.told(err)
}

// silent holds connections on which nothing is ever sent.
func (a *attacker) silent(ctx context.Context, _ int) {
	var conns []net.Conn
	for range 300 {
		if conn, err := a.dial(ctx, "tcp", a.node.API); err == nil {
			conns = append(conns, conn)
		}
	}
	wait(ctx, 2*time.Second)
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// slow sends a body that never ends, byte by byte.
func (a *attacker) slow(ctx context.Context, _ int) {
	conn, err := a.dial(ctx, "tcp", a.node.API)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "POST /quota.v1.QuotaService/Reserve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
	for err == nil && ctx.Err() == nil {
		wait(ctx, 100*time.Millisecond)
		_, err = io.WriteString(conn, " ")
	}
}
