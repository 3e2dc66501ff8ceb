package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// tokened sends a token with each call.
type tokened struct {
	next  http.RoundTripper
	token string
}

// RoundTrip implements http.RoundTripper.
func (t tokened) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+t.token)
	return t.next.RoundTrip(r)
}

// apis are the services as one token sees them.
type apis struct {
	quota quotav1connect.QuotaServiceClient
	task  quotav1connect.TaskServiceClient
	admin quotav1connect.AdminServiceClient
}

func apisOf(token, address string) apis {
	http, base := &http.Client{Transport: tokened{http.DefaultTransport, token}}, "http://"+address
	return apis{
		quotav1connect.NewQuotaServiceClient(http, base), quotav1connect.NewTaskServiceClient(http, base),
		quotav1connect.NewAdminServiceClient(http, base),
	}
}

// guardedNodes are the processes of nodes that require tokens: one token of an operator and many of users. The first
// node leads.
type guardedNodes struct {
	// addresses are those of the API, ops those of the operators' ports.
	addresses, ops []string
	dir            string
	env            []string
	operator       apis
	users          []apis
	// tokens are the users', operatorToken is the operator's.
	tokens        []string
	operatorToken string
}

// startGuarded starts three nodes.
func startGuarded(t *testing.T, users int) *guardedNodes {
	t.Helper()
	return startGuardedNodes(t, 3, users)
}

// startGuardedNodes starts nodes, with further flags of quotad serve.
func startGuardedNodes(t *testing.T, size, users int, flags ...string) *guardedNodes {
	t.Helper()
	free, err := loopback.Free(3 * size)
	if err != nil {
		t.Fatal(err)
	}
	n := &guardedNodes{addresses: free[:size], ops: free[size : 2*size], dir: t.TempDir()}
	raft := free[2*size:]
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
	operator := mint("ops", rpc.VerbUse, rpc.VerbReport, rpc.VerbRead, rpc.VerbAdminQuota, rpc.VerbAdminCluster, rpc.VerbDebug)
	n.operator, n.operatorToken = apisOf(operator, n.addresses[0]), operator
	for i := range users {
		n.tokens = append(n.tokens, mint(fmt.Sprint("user", i), rpc.VerbUse, rpc.VerbReport, rpc.VerbRead))
		n.users = append(n.users, apisOf(n.tokens[i], n.addresses[i%size]))
	}
	for name, text := range map[string]string{"tokens.yaml": file, "op.token": operator} { // in any order
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.env = documentEnv(t, "QUOTAD_SERVER="+strings.Join(n.addresses, ","), "QUOTAD_TOKEN_FILE="+filepath.Join(n.dir, "op.token"))
	var peers []string
	for i := range size {
		peers = append(peers, fmt.Sprintf("n%d=%s/%s", i+1, raft[i], n.addresses[i]))
	}
	said := make([]*sayings, size)
	for i := range size {
		said[i] = n.serve(t, append([]string{
			"--node-id", fmt.Sprintf("n%d", i+1), "--data-dir", fmt.Sprintf("d%d", i+1), "--raft-listen", raft[i],
			"--api-listen", n.addresses[i], "--ops-listen", n.ops[i], "--ops-pprof", "--peers", strings.Join(peers, ","),
		}, flags...)...)
	}
	for i := range size {
		waitFor(t, said[i], func() bool { code, _ := fetch("http://" + n.addresses[i] + "/readyz"); return code == http.StatusOK })
	}
	waitFor(t, said[0], func() bool {
		status, err := n.operator.admin.GetStatus(t.Context(), &quotav1.GetStatusRequest{})
		if err != nil || status.Leader == "n1" {
			return err == nil
		}
		_, _ = n.operator.admin.TransferLeadership(t.Context(), &quotav1.TransferLeadershipRequest{Id: "n1"})
		return false
	})
	return n
}

func (n *guardedNodes) quotad(args ...string) *exec.Cmd {
	bin, _, _ := strings.Cut(strings.TrimPrefix(n.env[0], "PATH="), ":")
	cmd := exec.Command(filepath.Join(bin, "quotad"), args...)
	cmd.Dir, cmd.Env = n.dir, n.env
	return cmd
}

func (n *guardedNodes) serve(t *testing.T, args ...string) *sayings {
	t.Helper()
	cmd, said := n.quotad(append([]string{"serve", "--tokens-file", "tokens.yaml"}, args...)...), new(sayings)
	cmd.Env = append(documentEnv(t), "QUOTAD_LOG_LEVEL=warn")
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("a node said:\n%s", said)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the node ended with %v:\n%s", err, said)
		}
	})
	return said
}

// run runs an operator's command, which must end within operatorsBound.
func (n *guardedNodes) run(t *testing.T, args ...string) string {
	t.Helper()
	return n.fails(t, 0, args...)
}

// fails runs a command that must end with a given exit code.
func (n *guardedNodes) fails(t *testing.T, code int, args ...string) string {
	t.Helper()
	out, ended := n.soon(t, args...)
	if ended != code {
		t.Errorf("quotad %s ended with %d\n%s", strings.Join(args, " "), ended, out)
	}
	return out
}

// soon runs a command, which must end within operatorsBound, and returns its output and exit code.
func (n *guardedNodes) soon(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	began := time.Now()
	cmd := n.quotad(args...)
	printed, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if took := time.Since(began); took > operatorsBound {
		t.Errorf("quotad %s took %v\n%s", strings.Join(args, " "), took, printed)
	}
	return string(printed), cmd.ProcessState.ExitCode()
}

// occupied is the caller that holds all the streams that it can get at the leader's API port.
type occupied struct {
	apis
	client *http.Client
	url    string
	// refused counts, by budget, how often the leader refused the caller one more stream.
	refused map[string]*atomic.Int64
	working sync.WaitGroup
}

const (
	// perConnection is the maximum number of HTTP/2 streams that share a connection.
	perConnection = 250
	// mostAtOnce exceeds the number of streams that a caller can get.
	mostAtOnce = rpc.DefaultMaxInFlight / 2
)

// occupy takes all of some budgets that a token can get at the leader, and keeps asking for more.
func (n *guardedNodes) occupy(t *testing.T, token string, rooms map[string]func(*occupied, context.Context)) *occupied {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: fromElsewhere().DialContext}
	client := &http.Client{Transport: tokened{transport, token}}
	o := &occupied{client: client, url: "http://" + n.addresses[0], refused: map[string]*atomic.Int64{}}
	o.quota = quotav1connect.NewQuotaServiceClient(o.client, o.url)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		o.working.Wait()
		transport.CloseIdleConnections()
	})
	for budget := range rooms { // in any order
		o.refused[budget] = new(atomic.Int64)
	}
	for budget, one := range rooms { // in any order
		o.working.Go(func() { o.more(ctx, o.refused[budget], func(ctx context.Context) { one(o, ctx) }) })
	}
	return o
}

// fromElsewhere dials from a host address of its own, where the system has more than one loopback address. A client that
// wants many streams opens many connections, and nodes divide unauthenticated connections among source addresses.
func fromElsewhere() *net.Dialer {
	elsewhere := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
	if listener, err := net.ListenTCP("tcp", elsewhere); err == nil {
		_ = listener.Close()
		return &net.Dialer{LocalAddr: elsewhere}
	}
	return &net.Dialer{}
}

// more starts streams as fast as connections take them, until one is refused. Then it starts one now and then, and more the
// longer none is refused, because then some streams were cut off.
func (o *occupied) more(ctx context.Context, refused *atomic.Int64, one func(context.Context)) {
	pace := time.NewTicker(poll)
	defer pace.Stop()
	var begun atomic.Int64
	for begin, before := perConnection/2, int64(0); ctx.Err() == nil; {
		for range begin {
			if begun.Add(1) > mostAtOnce {
				begun.Add(-1)
				break
			}
			o.working.Go(func() {
				defer begun.Add(-1)
				one(ctx)
			})
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
		if now := refused.Load(); now > before {
			begin, before = 1, now
		} else {
			begin = min(begin+1, perConnection/2)
		}
	}
}

// watch holds a stream.
func (o *occupied) watch(ctx context.Context) {
	stream, err := o.quota.Watch(ctx, &quotav1.WatchRequest{})
	if err == nil {
		for stream.Receive() {
		}
		err = errors.Join(stream.Err(), stream.Close())
	}
	if err != nil && infoOf(err).GetBudget() == "streams" {
		o.refused["streams"].Add(1)
	}
}

// untilFull waits until the leader has refused one more of each budget.
func (o *occupied) untilFull(t *testing.T) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for budget, refused := range o.refused { // in any order
		for refused.Load() == 0 {
			select {
			case <-ticker.C:
			case <-deadline:
				t.Fatalf("it was not refused for %s", budget)
			}
		}
	}
}

// status queries the leader's status until it answers: on a busy machine a connection may be cut off.
func (n *guardedNodes) status(t *testing.T) *quotav1.GetStatusResponse {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		status, err := n.operator.admin.GetStatus(t.Context(), &quotav1.GetStatusRequest{})
		if err == nil {
			return status
		}
		if t.Log(err); time.Now().After(deadline) {
			t.Fatal("the leader does not tell its status")
		}
		<-time.After(poll)
	}
}

// checkOccupied waits until the leader counts a caller at its part of some budgets. On a busy machine streams that nobody
// reads are cut off, and start again.
func (n *guardedNodes) checkOccupied(t *testing.T, caller string, rooms map[string]func(*occupied, context.Context)) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		said := n.occupied(t, caller, rooms)
		if said == "" {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatal(said)
		}
	}
}

// occupied names the budgets of which the caller has less than nine tenths of its part by the leader's count; empty: none.
func (n *guardedNodes) occupied(t *testing.T, caller string, rooms map[string]func(*occupied, context.Context)) (said string) {
	t.Helper()
	status := n.status(t)
	found := 0
	for _, b := range status.NodeBudgets {
		if rooms[b.Name] == nil {
			continue
		}
		for _, use := range b.Top {
			if !strings.HasSuffix(use.Caller, caller) {
				continue
			}
			found++
			if use.Used < use.Most*9/10 || use.Used < b.Capacity/4 {
				said += fmt.Sprintf("%s has %d of %d %s, and could have %d\n", caller, use.Used, b.Capacity, b.Name, use.Most)
			}
		}
	}
	if found != len(rooms) {
		said += fmt.Sprintf("%s is among the largest callers of %d of these budgets, want %d: %v\n",
			caller, found, len(rooms), status.NodeBudgets)
	}
	return said
}
