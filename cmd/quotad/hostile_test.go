package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// operatorsBound is ten times the promised bound of an operator's command while all budgets are full: other tests run at
// the same time.
const operatorsBound = 10 * time.Second

// greedy is one caller that fills the budgets that callers share.
type greedy struct {
	apis
	name string
	// taken numbers the things it takes.
	taken int
	// answered is the session whose results it acknowledges, kept the one whose results it does not acknowledge; 0: not
	// opened yet.
	answered, kept uint64
	lease          *quotav1.Lease
}

// taking takes one more of a budget.
type taking struct {
	budget string
	// one takes one, and returns the budget that refused it; empty: granted.
	one func(ctx context.Context, g *greedy) string
}

// notTaken stands for any reason other than a budget.
const notTaken = "no budget"

// refusedFor returns the budget that refused a call; empty: the call succeeded.
func refusedFor(err error, outcome *quotav1.ReserveResponse) string {
	if refusal := outcome.GetRefusal(); refusal != nil {
		return cmp.Or(refusal.Budget, notTaken)
	}
	if err == nil {
		return ""
	}
	return cmp.Or(infoOf(err).GetBudget(), notTaken)
}

// infoOf returns the ErrorInfo of an error; nil: it has none.
func infoOf(err error) *quotav1.ErrorInfo {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return nil
	}
	for _, detail := range failed.Details() {
		if value, valueErr := detail.Value(); valueErr == nil {
			if info, ok := value.(*quotav1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}

// another returns a name that the caller has not used yet.
func (g *greedy) another() string {
	g.taken++
	return fmt.Sprintf("%s-%d", g.name, g.taken)
}

// open opens a session, unless the caller has one for this purpose.
func (g *greedy) open(ctx context.Context, session *uint64) error {
	if *session != 0 {
		return nil
	}
	res, err := g.quota.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: g.name})
	if err == nil {
		*session = res.Session
	}
	return err
}

// reserve reserves one unit of a quota for an hour.
func (g *greedy) reserve(ctx context.Context, holder, quota string, with func(*quotav1.ReserveRequest)) string {
	request := &quotav1.ReserveRequest{Holder: holder, Items: []*quotav1.Item{{Quota: quota}}, Ttl: durationpb.New(time.Hour)}
	if with != nil {
		with(request)
	}
	res, err := g.quota.Reserve(ctx, request)
	return refusedFor(err, res)
}

// release releases a lease that does not exist, which costs nothing except the request's result.
func (g *greedy) release(ctx context.Context, id *quotav1.RequestId) string {
	_, err := g.quota.Release(ctx, &quotav1.ReleaseRequest{RequestId: id, Lease: 1 << 40, Fence: 1})
	if info := infoOf(err); info.GetReason() == quotav1.Reason_REASON_STALE_FENCE {
		return ""
	}
	return refusedFor(err, nil)
}

// takings covers all shared budgets, in an order in which a caller can fill each. A caller that has its part of the leases
// cannot reach any other budget with a Reserve. One that has its part of the results cannot get a key. The waiting Reserve
// uses a session that has room for results.
func takings() []taking {
	return []taking{
		{"waiters", func(ctx context.Context, g *greedy) string {
			if err := g.open(ctx, &g.answered); err != nil {
				return refusedFor(err, nil)
			}
			g.taken++
			seq := uint64(g.taken) //nolint:gosec // counted from 1
			return g.reserve(ctx, g.name, "none", func(r *quotav1.ReserveRequest) {
				r.RequestId = &quotav1.RequestId{Session: g.answered, Seq: seq, AckedBelow: seq}
				r.Wait, r.NoBlock = durationpb.New(10*time.Minute), true
			})
		}},
		{"holder_bytes", func(ctx context.Context, g *greedy) string { return g.reserve(ctx, g.another(), "plenty", nil) }},
		{"operation_bytes", func(ctx context.Context, g *greedy) string {
			return g.reserve(ctx, g.name, "plenty", func(r *quotav1.ReserveRequest) { r.Consume = true })
		}},
		{"leases", func(ctx context.Context, g *greedy) string { return g.reserve(ctx, g.name, "plenty", nil) }},
		{"keys", func(ctx context.Context, g *greedy) string {
			return g.release(ctx, &quotav1.RequestId{IdempotencyKey: g.another()})
		}},
		{"result_bytes", func(ctx context.Context, g *greedy) string {
			if err := g.open(ctx, &g.kept); err != nil {
				return refusedFor(err, nil)
			}
			g.taken++
			last := g.release(ctx, &quotav1.RequestId{Session: g.kept, Seq: uint64(g.taken)}) //nolint:gosec // counted from 1
			if last == notTaken {
				g.kept = 0 // a session has an eighth of all results at most, a caller may have more
			}
			return last
		}},
		{"sessions", func(ctx context.Context, g *greedy) string {
			_, err := g.quota.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: g.name})
			return refusedFor(err, nil)
		}},
		{"tasks", func(ctx context.Context, g *greedy) string {
			_, err := g.task.BeginTask(ctx, &quotav1.BeginTaskRequest{Task: g.another(), Holder: g.name})
			return refusedFor(err, nil)
		}},
		{"reports", func(ctx context.Context, g *greedy) string {
			_, err := g.quota.Report(ctx, &quotav1.ReportRequest{
				Lease: g.lease.Id, Fence: g.lease.Fence, Op: 1, Signals: []*quotav1.Signal{{Quota: "plenty", Cause: quotav1.Cause_CAUSE_OK}},
			})
			return refusedFor(err, nil)
		}},
	}
}

// hostile are callers that take all they can get and keep trying.
type hostile struct {
	stop    context.CancelFunc
	working sync.WaitGroup
	full    []*filling
}

// filling is the progress of one of them.
type filling struct {
	mu sync.Mutex
	// at is the budget that it fills now; empty: each budget has refused it. last is the reason for the last refusal.
	at, last string
	// rounds counts how often each budget has refused it again since.
	rounds atomic.Int64
}

func (f *filling) note(at, last string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.last = at, last
}

func (f *filling) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("fills %s, last refused for %q, tried in vain %d times since", f.at, f.last, f.rounds.Load())
}

// flood lets each user fill one budget after the other until the budget refuses it by name. Then each user tries again and
// again: as fast as it is answered, or with -short a hundred times a second at most.
func (n *guardedNodes) flood(t *testing.T, users int, lease *quotav1.Lease) *hostile {
	var pause time.Duration
	if testing.Short() {
		pause = 10 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(t.Context())
	h := &hostile{stop: cancel}
	for user := range users {
		g, f := &greedy{apis: n.users[user], name: fmt.Sprint("u", user), lease: lease}, &filling{}
		h.full = append(h.full, f)
		h.working.Go(func() {
			for _, take := range takings() {
				for last := ""; last != take.budget && ctx.Err() == nil; last = take.one(ctx, g) {
					f.note(take.budget, last)
				}
			}
			for f.note("", ""); ctx.Err() == nil; f.rounds.Add(1) {
				for _, take := range takings() {
					take.one(ctx, g)
					<-time.After(pause)
				}
			}
		})
	}
	t.Cleanup(h.end)
	return h
}

func (h *hostile) end() {
	h.stop()
	h.working.Wait()
}

// untilFull waits until each budget has refused each caller by name, and each caller has tried again.
func (h *hostile) untilFull(t *testing.T) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for user, f := range h.full {
		for f.rounds.Load() < 3 {
			select {
			case <-ticker.C:
			case <-deadline:
				t.Fatalf("caller %d %v", user, f)
			}
		}
	}
}

// refusals returns the number of refusals so far by budget, from the nodes' metrics.
func (n *guardedNodes) refusals(t *testing.T) map[string]int64 {
	t.Helper()
	counts := map[string]int64{}
	for _, address := range n.addresses {
		code, metrics := fetch("http://" + address + "/metrics")
		if code != http.StatusOK {
			t.Fatalf("metrics: %d %s", code, metrics)
		}
		for name, count := range countsOf(t, metrics, `quotad_budget_refusals_total{budget="`) { // in any order
			counts[name] += count
		}
	}
	return counts
}

// countsOf returns the values of a metric by its only label. begin is the beginning of its lines, up to the label's value.
func countsOf(t *testing.T, metrics, begin string) map[string]int64 {
	t.Helper()
	counts := map[string]int64{}
	for line := range strings.SplitSeq(metrics, "\n") {
		rest, found := strings.CutPrefix(line, begin)
		if !found {
			continue
		}
		label, count, _ := strings.Cut(rest, `"} `)
		value, err := strconv.ParseFloat(count, 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		counts[label] = int64(value)
	}
	return counts
}

// checkFull checks that the node counts callers at their part of each budget, and that takings covers exactly these
// budgets.
func (n *guardedNodes) checkFull(t *testing.T, users int) {
	t.Helper()
	status := n.status(t)
	taken := map[string]bool{}
	for _, take := range takings() {
		taken[take.budget] = true
	}
	refused := n.refusals(t)
	for _, b := range status.Budgets {
		t.Logf("%-16s %7d of %7d are used, %2d callers have some, %2d their part, refused %d times", b.Name, b.Used, b.Capacity, b.Callers,
			b.CallersAtBudget, refused[b.Name])
		if !taken[b.Name] {
			t.Errorf("%s: nobody fills it", b.Name)
		}
		if refused[b.Name] < int64(users) {
			t.Errorf("%s: %d refusals, there are %d callers at their part", b.Name, refused[b.Name], users)
		}
		if b.CallersAtBudget == 0 && b.Name != "reports" { // the budget of reports is per minute
			t.Errorf("%s: no caller has its part", b.Name)
		}
	}
	if len(status.Budgets) != len(taken) {
		t.Errorf("there are %d budgets, %d are filled", len(status.Budgets), len(taken))
	}
}

// TestOperators_WorkWhileCallersFillEverything: callers fill every shared budget, hold every stream that a caller can get
// at the leader, and keep asking for more. All operators' commands still end soon, and callers that take little are served.
// In-flight calls are the subject of rpc's TestCalls_OfOneCallerLeaveRoom: a node ends a call whose body does not arrive
// within 10 s.
func TestOperators_WorkWhileCallersFillEverything(t *testing.T) {
	users, streams := 10, 4096 // every event of the callers is sent on every stream
	if testing.Short() {
		users, streams = 3, 512
	}
	n := startGuarded(t, users+2)
	ctx := t.Context()
	quotas := "quotas:\n  - {name: plenty, rate: {limit: 1000000000, per: 1m}}\n  - {name: none, slots: {limit: 1}}\n" +
		"  - {name: old, slots: {limit: 1}}\n  - {name: core, window: {limit: 5000, every: hour}}\n" +
		"holders:\n  - {pattern: picard, class: critical}\nworkflows:\n  - {name: release, steps: [{holder: a}, {holder: b, after: [a]}]}\n"
	if err := os.WriteFile(filepath.Join(n.dir, "quotas.yaml"), []byte(quotas), 0o600); err != nil {
		t.Fatal(err)
	}
	n.run(t, "quota", "apply", "-f", "quotas.yaml")
	// A caller's part of the leases exceeds its parts of the other budgets that need leases; its part of the results
	// exceeds that of its keys.
	n.run(t, "limits", "--max-sessions", "80", "--max-keys", "160", "--max-tasks", "80", "--max-leases", "500", "--max-waiters", "80",
		"--max-reports", "80", "--max-result-bytes", "100000", "--max-holder-bytes", "10000", "--max-operation-bytes", "15000",
		"--caller-min", "0.01", "--max-streams", strconv.Itoa(streams))
	granted := func(quota string) *quotav1.Lease {
		res, err := n.operator.quota.Reserve(ctx, &quotav1.ReserveRequest{
			Holder: "ops", Items: []*quotav1.Item{{Quota: quota}}, Consume: quota == "plenty", Ttl: durationpb.New(time.Hour),
		})
		if err != nil || res.GetLease() == nil {
			t.Fatal(res, err)
		}
		return res.GetLease()
	}
	lease, held := granted("plenty"), granted("none")

	callers := n.flood(t, users, lease)
	callers.untilFull(t)
	rooms := map[string]func(*occupied, context.Context){"streams": (*occupied).watch}
	n.occupy(t, n.tokens[users], rooms).untilFull(t)

	n.checkFull(t, users)
	n.checkOccupied(t, "user"+strconv.Itoa(users), rooms)
	if out := n.run(t, "status"); !strings.Contains(out, "at budget") {
		t.Errorf("status does not tell:\n%s", out)
	}
	n.operate(t, held.Id)
	modest := &greedy{apis: n.users[users+1], name: "modest", lease: lease}
	for _, take := range takings() {
		if last := take.one(ctx, modest); last != "" {
			t.Errorf("a caller that takes little is refused %s for %q", take.budget, last)
		}
	}
	n.checkFull(t, users) // still
	n.checkOccupied(t, "user"+strconv.Itoa(users), rooms)
	n.run(t, "restore", "-i", "backup.snap", "--yes")
	n.run(t, "quota", "override", "core", "--limit", "0", "--for", "1h")
	n.run(t, "member", "transfer")
	n.run(t, "quota", "override", "core", "--end")
	callers.end()
}

// operate runs every operator's command that leaves the state as full as it is. held is a lease to revoke.
func (n *guardedNodes) operate(t *testing.T, held uint64) {
	t.Helper()
	for _, args := range [][]string{
		{"limits"},
		{"limits", "--key-life", "12h"},
		{"quota", "list"},
		{"quota", "get", "core"},
		{"quota", "apply", "-f", "quotas.yaml"},
		{"quota", "override", "core", "--limit", "0", "--for", "1h"},
		{"quota", "override", "core", "--end"},
		{"quota", "reopen", "core"},
		{"quota", "delete", "old"},
		{"lease", "revoke", strconv.FormatUint(held, 10)},
		{"lease", "list", "--holder", "ops"},
		{"workflow", "list"},
		{"workflow", "get", "release"},
		{"workflow", "delete", "release"},
		{"usage"},
		{"reserve", "core=1", "--holder", "ops"},
		{"task", "list"},
		{"clock", "reset"},
		{"status", "--check"},
		{"backup", "-o", "backup.snap"},
	} {
		n.run(t, args...)
	}
	n.fails(t, 3, "member", "remove", "n9")
	// On a busy machine a follower may have no leader for a moment, and reports it. This checks only that the answer
	// arrives soon.
	if out, code := n.soon(t, "status", "--check", "--cluster"); code > 1 || !strings.Contains(out, "n3 is ") {
		t.Errorf("status --check --cluster ended with %d\n%s", code, out)
	}
	if _, err := n.operator.task.BeginTask(t.Context(), &quotav1.BeginTaskRequest{Task: "theirs", Holder: "ops"}); err != nil {
		t.Errorf("an operator's task: %v", err)
	}
	n.run(t, "task", "retry", "theirs")
	n.run(t, "task", "forget", "theirs")
	if _, err := n.operator.admin.OverrideQuota(t.Context(), &quotav1.OverrideQuotaRequest{
		RequestId: &quotav1.RequestId{IdempotencyKey: "theirs"}, Name: "core", Duration: durationpb.New(time.Hour), Limit: new(int64(7)),
	}); err != nil {
		t.Errorf("an operator's own key: %v", err)
	}
}
