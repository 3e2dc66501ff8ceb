package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/jepsen/certs"
	"github.com/quotad/quotad/jepsen/cluster"
	"github.com/quotad/quotad/jepsen/hostile"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// endsWithin is how long a forwarded call may last after its leader has stopped, on a busy machine. It covers the pings of its connection
// (ten seconds), or an election and the hold for a new leader.
const endsWithin = 20 * time.Second

// stoppedLeader stops the leader with SIGSTOP while calls without a deadline are in flight through the other nodes: each must end
// nevertheless.
func stoppedLeader() Fault {
	return Fault{Name: "stopped-leader-with-forwarded-calls", do: func(
		ctx context.Context, e *Env, _ *rand.Rand, hold func(context.Context),
	) (hit, error) {
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
		wait(ctx, 200*time.Millisecond) // all of them are in flight
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
			err = brokenError(fmt.Sprintf("%d calls through followers still run %v after the leader stopped", open.Load(), endsWithin))
			stop()
			<-ended
		}
		_ = leader.Resume() // another fault may have killed it meanwhile
		h.seen = fmt.Sprintf("%d calls in flight, the longest took %v", under, longest.Round(time.Millisecond))
		if under == 0 {
			return h, errNotSeen
		}
		return h, err
	}}
}

// neverIssued is a call that is applied through the log and changes nothing.
var neverIssued = &quotav1.ReleaseRequest{Lease: 1 << 40, Fence: 1 << 40}

// SmallBudgets are bounds that a hostile caller reaches during a fault, and the workload does not: it uses less than a third of each. A
// caller may have half of the part that another leaves.
func SmallBudgets() *quotav1.Limits {
	return &quotav1.Limits{
		MaxSessions: new(int64(600)), MaxTasks: new(int64(600)), MaxKeys: new(int64(200)), MaxLeases: new(int64(6000)),
		MaxWaiters: new(int64(400)), MaxReports: new(int64(2000)), MaxResultBytes: new(int64(8 << 20)),
		MaxHolderBytes: new(int64(300_000)), MaxOperationBytes: new(int64(2_000_000)), MaxStreams: new(int64(200)),
	}
}

// operatorWithin is ten times an operator's promised latency while callers fill everything: the machine is busy too.
const operatorWithin = 10 * time.Second

// fullCrowd is what an attack of full size asks for: as many connections over all nodes as one node accepts, and far more streams than one
// token may have. How many it opens in its time depends on the machine.
var fullCrowd = hostile.Crowd{Silent: 10_000, Streams: 5_000, Watchers: 2_000}

// mostFullAttacks is how often a run tries: on a busy machine an attack may not open enough streams in its time.
const mostFullAttacks = 3

// hostileCaller runs a hostile caller against every node in a separate process, at full size until one such attack has exhausted what it is
// for. The checkers judge whether others were served; this fault itself repeats an operator's command meanwhile.
func hostileCaller() Fault {
	return Fault{Name: "hostile-caller", do: func(ctx context.Context, e *Env, _ *rand.Rand, hold func(context.Context)) (hit, error) {
		nodes, _ := all(ctx, e, nil)
		h := hit{}
		spec := hostile.Spec{
			Token: e.Hostile, Bundle: e.bundle(),
			Crowd: hostile.Crowd{Silent: 300 * len(nodes), Streams: 100 * len(nodes), Watchers: 100 * len(nodes)},
		}
		if e.Roomy && !e.exhausted.Load() && e.fullAttacks.Add(1) <= mostFullAttacks {
			spec.First, h.full = &fullCrowd, true
		}
		for _, node := range nodes {
			attacked := hostile.Node{Name: node.ID, API: node.API, Raft: node.Raft}
			if !h.full { // a full attack needs all of its process for the API's ports
				attacked.Ops = node.Ops
			}
			spec.Nodes = append(spec.Nodes, attacked)
			h.targets = append(h.targets, node.ID+"<hostile")
		}
		end, err := e.Attack(&spec)
		if err != nil {
			return h, err
		}
		operating, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		ports := atBothPorts(operating, e, nodes)
		hold(ctx)
		longer := hostile.Filling
		if h.full {
			longer += hostile.Crowding + hostile.Filling // what the crowd held has to return first
		}
		wait(context.WithoutCancel(ctx), longer)
		stop()
		report, endErr := end()
		seen, err := ports()
		if endErr != nil {
			return h, errors.Join(err, endErr)
		}
		asked := spec.Crowd
		if h.full {
			asked = fullCrowd
		}
		h.refused = report.Budgets
		if h.full && !slices.ContainsFunc(hostile.Crowded(), func(budget string) bool { return report.Budgets[budget] == 0 }) {
			e.exhausted.Store(true)
		}
		h.seen = fmt.Sprintf("%d calls, %d refused for a budget, by name %v, errors %v, %d anonymous callers at the Raft port, "+
			"%d silent connections and %d streams of %d and %d at once, %d watchers of health, %d files; %s%s",
			report.Calls, report.Refused, report.Budgets, report.Reasons, report.Anonymous, report.Silent, report.Streams, asked.Silent,
			asked.Streams, report.Watchers, report.Files, ofOps(report.Ops), seen)
		missedOps := !h.full && (report.Ops == nil || report.Ops.Calls == 0 || report.Ops.Silent == 0)
		if err == nil && (report.Refused == 0 || report.Anonymous == 0 || missedOps) {
			err = errNotSeen
		}
		return h, err
	}}
}

// ofOps is the text on an attack on the ports for operators, empty: there was none.
func ofOps(report *hostile.Report) string {
	if report == nil {
		return ""
	}
	return fmt.Sprintf("at the operators' ports %d calls, %d refused for a budget, by name %v, errors %v, %d silent connections and "+
		"%d streams at once; ", report.Calls, report.Refused, report.Budgets, report.Reasons, report.Silent, report.Streams)
}

// port is a port of a node that serves operators: the API's or their own.
type port struct {
	name  string
	url   func(*cluster.Node) string
	admin func(*cluster.Node) quotav1connect.AdminServiceClient
}

var servingOperators = []port{
	{"the API's port", (*cluster.Node).URL, (*cluster.Node).Admin}, {"the operators' port", (*cluster.Node).OpsURL, (*cluster.Node).Operators},
}

// atBothPorts repeats an operator's command and a request for /livez at both ports of the nodes until ctx ends. wait returns a text of the
// results, and a brokenError if a port did not answer in time, or errNotSeen.
func atBothPorts(ctx context.Context, e *Env, nodes []*cluster.Node) (wait func() (seen string, err error)) {
	var working sync.WaitGroup
	seen, failed := make([]string, len(servingOperators)), make([]error, len(servingOperators))
	for i, p := range servingOperators {
		working.Go(func() {
			var lives life
			var living sync.WaitGroup
			living.Go(func() { lives = e.watchLife(ctx, nodes, p) })
			carried, longest, err := operate(ctx, e, p)
			living.Wait()
			if err = errors.Join(err, lives.err); err == nil && (carried == 0 || lives.answered == 0) {
				err = errNotSeen
			}
			seen[i] = fmt.Sprintf("at %s %d commands of the operator, the longest took %v; %s", p.name, carried,
				longest.Round(time.Millisecond), &lives)
			failed[i] = err
		})
	}
	return func() (string, error) {
		working.Wait()
		return strings.Join(seen, "; "), errors.Join(failed...)
	}
}

// operate repeats an operator's command at a port, and returns how often it succeeded and the longest time. It returns a brokenError if one
// took too long.
func operate(ctx context.Context, e *Env, at port) (carried int, longest time.Duration, err error) {
	for ; ctx.Err() == nil; carried++ {
		began := time.Now()
		for tried := 0; ; tried++ {
			leader, err := e.Cluster.Leader(context.WithoutCancel(ctx))
			if err == nil {
				call, cancel := context.WithTimeout(context.WithoutCancel(ctx), operatorWithin)
				limits := &quotav1.Limits{TaskLife: durationpb.New(7 * 24 * time.Hour)}
				_, err = at.admin(leader).SetLimits(call, &quotav1.SetLimitsRequest{Limits: limits})
				cancel()
			}
			took := time.Since(began)
			if longest = max(longest, took); took > operatorWithin {
				return carried, longest, brokenError(fmt.Sprintf("an operator's command at %s took %v: %v", at.name, took.Round(time.Millisecond), err))
			}
			if err == nil {
				break
			}
			wait(ctx, 50*time.Millisecond)
		}
		wait(ctx, 200*time.Millisecond)
	}
	return carried, longest, nil
}

// life is the result of requests for /livez of the nodes.
type life struct {
	answered int
	longest  time.Duration
	err      error
}

// String formats the result.
func (l *life) String() string {
	return fmt.Sprintf("/livez answered %d times, after %v at the most", l.answered, l.longest.Round(time.Millisecond))
}

// livesWithin is how long /livez may take: the patience of a service supervisor, and the delay of a busy machine.
const livesWithin = 10 * time.Second

// watchLife requests /livez of each node's port in turn, each time on a new connection of an anonymous caller. A node that does not
// answer within livesWithin has broken a promise, unless it is down at the end of that time: another fault may be the cause.
func (e *Env) watchLife(ctx context.Context, nodes []*cluster.Node, at port) (l life) {
	transport := &http.Transport{DialContext: e.Dial, DisableKeepAlives: true}
	if bundle := e.bundle(); bundle != "" {
		transport.DialTLSContext = certs.Secured(e.Dial, bundle)
	}
	client := &http.Client{Transport: transport}
	for n := 0; ctx.Err() == nil; n++ {
		node := nodes[n%len(nodes)]
		began := time.Now()
		err := alive(context.WithoutCancel(ctx), client, node, at)
		took := time.Since(began)
		switch {
		case err == nil:
			l.answered++
			l.longest = max(l.longest, took)
		case took >= livesWithin && node.Running():
			l.err = brokenError(fmt.Sprintf("/livez of %s at %s did not answer within %v: %v", node.ID, at.name, livesWithin, err))
			return l
		}
		wait(ctx, 50*time.Millisecond)
	}
	return l
}

// alive requests one node's /livez until it answers or its time is up.
func alive(ctx context.Context, client *http.Client, node *cluster.Node, at port) error {
	ctx, cancel := context.WithTimeout(ctx, livesWithin)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.url(node)+"/livez", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("/livez answered %s", response.Status)
		}
		if ctx.Err() != nil || !node.Running() {
			return err
		}
		wait(ctx, 50*time.Millisecond)
	}
}
