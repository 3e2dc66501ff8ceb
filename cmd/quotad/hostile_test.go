package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// operatorsBound is ten times what is promised of an operator's command while everything is full: other tests run beside this.
const operatorsBound = 10 * time.Second

// tokened sends a token with each call.
type tokened struct{ token string }

// RoundTrip implements http.RoundTripper.
func (t tokened) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+t.token)
	return http.DefaultTransport.RoundTrip(r)
}

// apis are the services as one token sees them.
type apis struct {
	quota quotav1connect.QuotaServiceClient
	task  quotav1connect.TaskServiceClient
	admin quotav1connect.AdminServiceClient
}

func apisOf(token, address string) apis {
	http, base := &http.Client{Transport: tokened{token}}, "http://"+address
	return apis{
		quotav1connect.NewQuotaServiceClient(http, base), quotav1connect.NewTaskServiceClient(http, base), quotav1connect.NewAdminServiceClient(http, base),
	}
}

// guardedNode is a node's process whose callers need tokens: one of an operator, and many of users.
type guardedNode struct {
	address, dir string
	env          []string
	operator     apis
	users        []apis
}

func startGuarded(t *testing.T, users int) *guardedNode {
	t.Helper()
	dir := t.TempDir()
	api, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	raft, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	n := &guardedNode{address: "127.0.0.1:" + strconv.Itoa(api), dir: dir}
	file := "tokens:\n"
	mint := func(id string, verbs ...rpc.Verb) string {
		secret, entry, err := rpc.NewToken(id, "*", "critical", verbs)
		if err != nil {
			t.Fatal(err)
		}
		file += fmt.Sprintf("- {id: %s, sha256: %s, holder: '*', max_class: critical, verbs: [%s]}\n", entry.ID, entry.SHA256,
			strings.Trim(strings.Join(strings.Fields(fmt.Sprint(verbs)), ", "), "[]"))
		return secret
	}
	operator := mint("ops", rpc.VerbUse, rpc.VerbReport, rpc.VerbRead, rpc.VerbAdminQuota, rpc.VerbAdminCluster)
	n.operator = apisOf(operator, n.address)
	for i := range users {
		n.users = append(n.users, apisOf(mint(fmt.Sprint("user", i), rpc.VerbUse, rpc.VerbReport, rpc.VerbRead), n.address))
	}
	for name, text := range map[string]string{"tokens.yaml": file, "op.token": operator} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.env = documentEnv(t, "QUOTAD_SERVER="+n.address, "QUOTAD_TOKEN_FILE="+filepath.Join(dir, "op.token"))
	n.serve(t, raft)
	return n
}

func (n *guardedNode) quotad(args ...string) *exec.Cmd {
	bin, _, _ := strings.Cut(strings.TrimPrefix(n.env[0], "PATH="), ":")
	cmd := exec.Command(filepath.Join(bin, "quotad"), args...)
	cmd.Dir, cmd.Env = n.dir, n.env
	return cmd
}

func (n *guardedNode) serve(t *testing.T, raft int) {
	t.Helper()
	cmd := n.quotad("serve", "--data-dir", "data", "--api-listen", n.address, "--raft-listen", "127.0.0.1:"+strconv.Itoa(raft), "--tokens-file", "tokens.yaml")
	cmd.Env = append(documentEnv(t), "QUOTAD_LOG_LEVEL=warn")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the node ended with %v:\n%s", err, said.String())
		}
	})
	deadline := time.After(patience)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for code := 0; code != http.StatusOK; code, _ = fetch("http://" + n.address + "/readyz") {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("the node is not ready:\n%s", said.String())
		}
	}
}

// run carries an operator's command out, which must end well within the bound.
func (n *guardedNode) run(t *testing.T, args ...string) string {
	t.Helper()
	began := time.Now()
	cmd := n.quotad(args...)
	out, err := cmd.CombinedOutput()
	if took := time.Since(began); err != nil || took > operatorsBound {
		t.Errorf("quotad %s took %v: %v\n%s", strings.Join(args, " "), took, err, out)
	}
	return string(out)
}

// takings take something of each thing that callers share, the n-th of a user, and tell whether they got it.
func takings(user, n int, lease *quotav1.Lease) []func(context.Context, apis) bool {
	name, known := fmt.Sprintf("u%d-%d", user, n), fmt.Sprintf("u%d", user)
	items := func(quota string) []*quotav1.Item { return []*quotav1.Item{{Quota: quota}} }
	had := func(err error) bool { return connect.CodeOf(err) != connect.CodeResourceExhausted }
	return []func(context.Context, apis) bool{
		func(ctx context.Context, a apis) bool {
			_, err := a.quota.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: name})
			return had(err)
		},
		func(ctx context.Context, a apis) bool {
			res, err := a.quota.Reserve(ctx, &quotav1.ReserveRequest{
				RequestId: &quotav1.RequestId{IdempotencyKey: "w" + name}, Holder: known, Items: items("none"),
				Wait: durationpb.New(10 * time.Minute), NoBlock: true,
			})
			return had(err) && res.GetWaiting() != nil
		},
		func(ctx context.Context, a apis) bool {
			_, err := a.quota.Release(ctx, &quotav1.ReleaseRequest{RequestId: &quotav1.RequestId{IdempotencyKey: name}, Lease: 1 << 40, Fence: 1})
			return had(err)
		},
		func(ctx context.Context, a apis) bool {
			_, err := a.task.BeginTask(ctx, &quotav1.BeginTaskRequest{Task: name, Holder: name})
			return had(err)
		},
		func(ctx context.Context, a apis) bool { // a holder that is not known yet
			res, err := a.quota.Reserve(ctx, &quotav1.ReserveRequest{Holder: name, Items: items("plenty"), Ttl: durationpb.New(time.Hour)})
			return had(err) && res.GetLease() != nil
		},
		func(ctx context.Context, a apis) bool { // an operation that is never settled
			res, err := a.quota.Reserve(ctx, &quotav1.ReserveRequest{Holder: known, Items: items("plenty"), Consume: true, Ttl: durationpb.New(time.Hour)})
			return had(err) && res.GetLease() != nil
		},
		func(ctx context.Context, a apis) bool {
			res, err := a.quota.Reserve(ctx, &quotav1.ReserveRequest{Holder: known, Items: items("plenty"), Ttl: durationpb.New(time.Hour)})
			return had(err) && res.GetLease() != nil
		},
		func(ctx context.Context, a apis) bool {
			_, err := a.quota.Report(ctx, &quotav1.ReportRequest{
				Lease: lease.Id, Fence: lease.Fence, Op: 1, Signals: []*quotav1.Signal{{Quota: "plenty", Cause: quotav1.Cause_CAUSE_OK}},
			})
			return had(err)
		},
	}
}

// hostile takes all that its callers can get, and goes on trying.
type hostile struct {
	stop    context.CancelFunc
	working sync.WaitGroup
	// vain counts, of each caller, the rounds in a row in which it got nothing.
	vain []atomic.Int64
}

func (n *guardedNode) flood(t *testing.T, users int, lease *quotav1.Lease) *hostile {
	ctx, cancel := context.WithCancel(t.Context())
	h := &hostile{stop: cancel, vain: make([]atomic.Int64, users)}
	for user := range users {
		h.working.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				got := false
				for _, take := range takings(user, i, lease) {
					got = take(ctx, n.users[user]) || got
				}
				if h.vain[user].Add(1); got {
					h.vain[user].Store(0)
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

// untilFull waits until nobody gets anything any more.
func (h *hostile) untilFull(t *testing.T) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for user := range h.vain {
		for h.vain[user].Load() < 3 {
			select {
			case <-ticker.C:
			case <-deadline:
				t.Fatalf("caller %d gets something still", user)
			}
		}
	}
}

// TestOperators_WorkWhileCallersFillEverything: callers that take what they can of all that callers share, and go on asking for
// more, keep no operator's command from being carried out soon; and those who take little are served.
func TestOperators_WorkWhileCallersFillEverything(t *testing.T) {
	const users = 10
	n := startGuarded(t, users+1)
	ctx := t.Context()
	quotas := "quotas:\n  - {name: plenty, rate: {limit: 1000000000, per: 1m}}\n  - {name: none, slots: {limit: 1}}\n" +
		"  - {name: old, slots: {limit: 1}}\n  - {name: core, window: {limit: 5000, every: hour}}\n" +
		"holders:\n  - {pattern: picard, class: critical}\nworkflows:\n  - {name: release, steps: [{holder: a}, {holder: b, after: [a]}]}\n"
	if err := os.WriteFile(filepath.Join(n.dir, "quotas.yaml"), []byte(quotas), 0o600); err != nil {
		t.Fatal(err)
	}
	n.run(t, "quota", "apply", "-f", "quotas.yaml")
	n.run(t, "limits", "--max-sessions", "320", "--max-keys", "640", "--max-tasks", "320", "--max-leases", "960", "--max-waiters", "320",
		"--max-reports", "320", "--max-result-bytes", "200000", "--max-holder-bytes", "40000", "--max-operation-bytes", "60000", "--caller-min", "0.01")
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

	out := n.run(t, "status")
	if !strings.Contains(out, "sessions full") && !strings.Contains(out, "at budget") {
		t.Errorf("status does not tell:\n%s", out)
	}
	for _, args := range [][]string{
		{"limits"},
		{"limits", "--key-life", "12h"},
		{"quota", "list"},
		{"quota", "get", "core"},
		{"quota", "apply", "-f", "quotas.yaml"},
		{"quota", "override", "core", "--limit", "0", "--for", "1h"},
		{"quota", "override", "core", "--end"},
		{"quota", "delete", "old"},
		{"lease", "revoke", strconv.FormatUint(held.Id, 10)},
		{"lease", "list", "--holder", "ops"},
		{"workflow", "list"},
		{"workflow", "delete", "release"},
		{"usage"},
		{"reserve", "core=1", "--holder", "ops"},
		{"task", "list"},
		{"backup", "-o", "backup.snap"},
	} {
		n.run(t, args...)
	}
	if _, err := n.operator.task.BeginTask(ctx, &quotav1.BeginTaskRequest{Task: "theirs", Holder: "ops"}); err != nil {
		t.Errorf("an operator's task: %v", err)
	}
	n.run(t, "task", "retry", "theirs")
	n.run(t, "task", "forget", "theirs")
	if _, err := n.operator.admin.OverrideQuota(ctx, &quotav1.OverrideQuotaRequest{
		RequestId: &quotav1.RequestId{IdempotencyKey: "theirs"}, Name: "core", Duration: durationpb.New(time.Hour), Limit: new(int64(7)),
	}); err != nil {
		t.Errorf("an operator's own key: %v", err)
	}
	for i, take := range takings(users, 0, lease) {
		if !take(ctx, n.users[users]) {
			t.Errorf("a caller that takes little is refused thing %d", i)
		}
	}
	callers.end()
}
