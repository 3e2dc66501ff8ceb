package rpc_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

type rpcConfig = rpc.Config

// testNode is a node with its API on loopback.
type testNode struct {
	config raftnode.Config
	api    rpc.Config
	node   *raftnode.Node
	server *rpc.Server
	http   *http.Server
	url    string
}

// open starts a node, or starts it again with the data that it had.
func (n *testNode) open(t *testing.T, listener net.Listener) {
	t.Helper()
	node, err := raftnode.Open(n.config)
	if err != nil {
		t.Fatal(err)
	}
	n.node, n.api.Node, n.api.Registry = node, node, nil
	n.api.Listener, _ = listener.(*rpc.Listener)
	if n.server, err = rpc.New(n.api); err != nil {
		t.Fatal(err)
	}
	n.http = rpc.NewHTTPServer(n.server.Handler(), nil, hclog.NewNullLogger())
	go func(server *http.Server) { _ = server.Serve(listener) }(n.http)
}

// kill ends a node and its connections at once.
func (n *testNode) kill() {
	_ = n.http.Close()
	n.node.Kill()
}

// again starts a killed node.
func (n *testNode) again(t *testing.T) {
	t.Helper()
	listener, err := rpc.Listen(n.config.APIAddress, rpc.DefaultMaxConnections)
	if err != nil {
		t.Fatal(err)
	}
	n.open(t, listener)
}

// newNodes starts a cluster of nodes in this process. The load of other tests must not change the leader; a node alone loses an election to
// nobody, and holds it at once.
func newNodes(t *testing.T, size int, change ...func(*rpc.Config)) []*testNode {
	t.Helper()
	elections := time.Second
	if size == 1 {
		elections = 20 * time.Millisecond
	}
	return newElectingNodes(t, size, elections, change...)
}

// newElectingNodes is newNodes with another time for elections.
func newElectingNodes(t *testing.T, size int, elections time.Duration, change ...func(*rpc.Config)) []*testNode {
	t.Helper()
	peers := make([]raftnode.Peer, size)
	listeners := make([]net.Listener, size)
	addresses, err := loopback.Free(2 * size)
	if err != nil {
		t.Fatal(err)
	}
	for i, address := range addresses[:size] {
		listener, err := rpc.Listen(addresses[size+i], rpc.DefaultMaxConnections)
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = listener
		peers[i] = raftnode.Peer{ID: fmt.Sprintf("n%d", i), RaftAddress: address, APIAddress: listener.Addr().String()}
	}
	nodes, unpaid := make([]*testNode, size), make([]*nobodysCommands, size)
	for i := range nodes {
		conf := raftnode.DefaultConfig()
		conf.ID, conf.RaftAddress, conf.APIAddress = peers[i].ID, peers[i].RaftAddress, peers[i].APIAddress
		conf.DataDir, conf.Peers, conf.Testing = t.TempDir(), peers, true
		conf.ApplyTimeout, conf.StallLimit = time.Minute, 30*time.Second // the load of other tests must not stop a node
		conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLease = elections, elections, elections*9/10
		nobodys := &nobodysCommands{}
		conf.Applied = nobodys.record
		n := &testNode{config: conf, api: rpc.Config{Version: "test", WriteAnswer: 5 * time.Minute}, url: "http://" + peers[i].APIAddress}
		rpc.NeverBusy(&n.api) // the load of other tests delays nobody
		for _, fn := range change {
			fn(&n.api)
		}
		n.open(t, listeners[i])
		nodes[i] = n
		unpaid[i] = nobodys
	}
	t.Cleanup(func() {
		// All at once: the last one of a cluster would wait for a successor.
		var stopping sync.WaitGroup
		for _, n := range nodes {
			stopping.Go(func() { n.close(t) })
		}
		stopping.Wait()
		for _, commands := range unpaid {
			commands.check(t)
		}
	})
	eventually(t, "a leader that every node knows", func() bool {
		for _, n := range nodes {
			if id, address, _ := n.node.Leader(); id == "" || address == "" {
				return false
			}
		}
		for _, n := range nodes {
			if _, _, self := n.node.Leader(); self {
				return true
			}
		}
		return false
	})
	return nodes
}

// close ends a node: its API first, and then the rest.
func (n *testNode) close(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = n.server.Drain(ctx)
	_ = n.http.Close()
	if err := n.node.Close(ctx); err != nil {
		t.Error(err)
	}
}

// nobodysCommands are the kinds of commands that passed through the API and are charged to no caller. There must be none: every node of
// these tests checks for them.
type nobodysCommands struct {
	mu    sync.Mutex
	kinds map[string]int
}

// record is called for each entry applied.
func (c *nobodysCommands) record(_ *fsm.Applied, payload []byte, _ func() [32]byte) {
	entry := &logpb.Entry{}
	if proto.Unmarshal(payload, entry) != nil {
		return // an entry of another form, which has a test of its own
	}
	for _, command := range entry.Commands {
		switch command.Kind.(type) {
		case *logpb.Command_Found, *logpb.Command_PutMember, *logpb.Command_DeleteMember: // the node's own
			continue
		}
		if command.Caller == "" {
			c.mu.Lock()
			if c.kinds == nil {
				c.kinds = map[string]int{}
			}
			c.kinds[fmt.Sprintf("%T", command.Kind)]++
			c.mu.Unlock()
		}
	}
}

func (c *nobodysCommands) check(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kinds) > 0 {
		t.Errorf("commands without a caller: %v", c.kinds)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// leadershipMoved tells whether a call was refused because its node did not lead any more, or not yet: a busy machine elects others at
// any time. The call had no effect.
func leadershipMoved(info *quotav1.ErrorInfo) bool {
	return info.GetReason() == quotav1.Reason_REASON_NO_LEADER && info.GetNotAccepted()
}

// persistent makes a client repeat calls that were refused because leadership moved.
var persistent = connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		for deadline := time.Now().Add(time.Minute); ; {
			res, err := next(ctx, req)
			if !leadershipMoved(infoOf(err)) || time.Now().After(deadline) {
				return res, err
			}
			select {
			case <-ctx.Done():
				return res, err
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}))

// atLeader makes a call at the leader, and again at the next one if it was refused because leadership moved. It returns the call's error.
func atLeader(t *testing.T, nodes []*testNode, call func(leader int) error) (err error) {
	t.Helper()
	eventually(t, "a leader takes or refuses a call", func() bool {
		leader, _ := leaderAndFollower(t, nodes)
		err = call(leader)
		return !leadershipMoved(infoOf(err))
	})
	return err
}

// undisturbed makes a check while all nodes follow one leader, and again if that changed meanwhile.
func undisturbed(t *testing.T, nodes []*testNode, check func(leader, follower int) error) {
	t.Helper()
	var err error
	eventually(t, "a check while leadership stays where it is", func() bool {
		leader, follower := leaderAndFollower(t, nodes)
		before := followed(nodes)
		if before == 0 {
			return false
		}
		err = check(leader, follower)
		return followed(nodes) == before
	})
	if err != nil {
		t.Error(err)
	}
}

// followed returns the term of the leader that all nodes follow, 0 where they do not agree.
func followed(nodes []*testNode) (term uint64) {
	named := ""
	for i, n := range nodes {
		id, _, self := n.node.Leader()
		now := n.node.Status().Term
		if id == "" || i > 0 && (id != named || now != term) || self != (id == n.node.ID()) {
			return 0
		}
		named, term = id, now
	}
	return term
}

// post sends JSON as curl would, again if it was refused because leadership moved, and returns status and body.
func post(t *testing.T, url, path, body string, headers ...string) (status int, answer string) {
	t.Helper()
	head, answer := postBy(t, http.DefaultClient, url+path, body, headers...)
	return head.StatusCode, answer
}

// postBy is post with a given client. It returns the answer's head and body.
func postBy(t *testing.T, client *http.Client, url, body string, headers ...string) (head *http.Response, answer string) {
	t.Helper()
	eventually(t, "a leader takes or refuses a call", func() bool {
		head, answer = send(t, client, requestOf(t, url, body, headers...))
		return !saysLeadershipMoved(answer)
	})
	return head, answer
}

// saysLeadershipMoved is leadershipMoved for JSON.
func saysLeadershipMoved(answer string) bool {
	return strings.Contains(answer, `"REASON_NO_LEADER"`) && strings.Contains(answer, `"notAccepted":true`)
}

// postOnce sends JSON as curl would and returns status and body.
func postOnce(t *testing.T, url, path, body string, headers ...string) (int, string) {
	t.Helper()
	head, answer := send(t, http.DefaultClient, requestOf(t, url+path, body, headers...))
	return head.StatusCode, answer
}

// requestOf makes a POST of JSON.
func requestOf(t *testing.T, url, body string, headers ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

// send sends a request and returns the answer's head and body.
func send(t *testing.T, client *http.Client, req *http.Request) (head *http.Response, answer string) {
	t.Helper()
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(data)
}

const applyCore = `{"quotas":[{"name":"t/core","rate":{"limit":10,"per":"60s"}}]}`

func TestCurl_AtAnyNode(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	const reserve = `{"holder":"me","items":[{"quota":"t/core","amount":3}],"ttl":"30s"}`
	for _, n := range nodes {
		status, body := post(t, n.url, "/quota.v1.QuotaService/Reserve", reserve)
		if status != 200 || !strings.Contains(body, `"lease"`) || !strings.Contains(body, `"fence"`) || !strings.Contains(body, `"expiresIn"`) {
			t.Fatalf("%d %s", status, body)
		}
	}
	status, body := post(t, nodes[0].url, "/quota.v1.QuotaService/Reserve", reserve)
	if status != 200 || !strings.Contains(body, `"refusal"`) || !strings.Contains(body, "REASON_EXHAUSTED") {
		t.Fatalf("%d %s", status, body)
	}
	status, body = post(t, nodes[1].url, "/quota.v1.QuotaService/Reserve", reserve, rpc.HeaderRefusalStatus, "429")
	if status != 429 {
		t.Fatalf("%d %s", status, body)
	}
}

func TestClients_GRPCAndConnect(t *testing.T) {
	nodes := newNodes(t, 1)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	h2c := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	defer h2c.CloseIdleConnections()
	admin := quotav1connect.NewAdminServiceClient(h2c, nodes[0].url, connect.WithGRPC())
	if _, err := admin.ApplyQuotas(t.Context(), &quotav1.ApplyQuotasRequest{Quotas: []*quotav1.Quota{{
		Name: "s", Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: 2}},
	}}}); err != nil {
		t.Fatal(err)
	}
	for _, options := range [][]connect.ClientOption{{connect.WithGRPC()}, {connect.WithGRPCWeb()}, {}, {connect.WithProtoJSON()}} {
		c := quotav1connect.NewQuotaServiceClient(h2c, nodes[0].url, options...)
		res, err := c.Reserve(t.Context(), &quotav1.ReserveRequest{Holder: "g", Items: []*quotav1.Item{{Quota: "s"}}})
		if err != nil || res.GetLease() == nil {
			t.Fatalf("%v %v", res, err)
		}
		if _, err := c.Release(t.Context(), &quotav1.ReleaseRequest{Lease: res.GetLease().Id, Fence: res.GetLease().Fence}); err != nil {
			t.Fatal(err)
		}
		_, err = c.Release(t.Context(), &quotav1.ReleaseRequest{Lease: res.GetLease().Id, Fence: res.GetLease().Fence})
		if connect.CodeOf(err) != connect.CodeFailedPrecondition {
			t.Fatalf("released twice: %v", err)
		}
	}
}

func TestHealth(t *testing.T) {
	nodes := newNodes(t, 1)
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		eventually(t, path, func() bool {
			res := httptest.NewRecorder()
			nodes[0].server.Handler().ServeHTTP(res, httptest.NewRequest(http.MethodGet, path, nil))
			return res.Code == 200
		})
	}
}
