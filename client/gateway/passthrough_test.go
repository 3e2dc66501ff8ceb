package gateway_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/rpc/quotav1"
)

// startNode starts a fake node that answers each call of the API with {}. It returns its address and the Authorization headers of the
// GetQuota calls that it received.
func startNode(tb testing.TB) (address string, seen func() [][]string) {
	tb.Helper()
	var mu sync.Mutex
	var all [][]string
	address = startAPI(tb, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/GetQuota") {
			mu.Lock()
			all = append(all, r.Header.Values("Authorization"))
			mu.Unlock()
		}
		speak(200, `{}`)(w, r)
	})
	return address, func() [][]string {
		mu.Lock()
		defer mu.Unlock()
		return append([][]string(nil), all...)
	}
}

// TestAPI_NeverLendsTheGatewaysTokenWhereCallersNeedTheirOwn: a proxy removes headers named by Connection, so a caller could present a
// credential to the gateway that no node ever sees.
func TestAPI_NeverLendsTheGatewaysTokenWhereCallersNeedTheirOwn(t *testing.T) {
	const own = "qtd_gw_made-up"
	for _, asksTokens := range []bool{true, false} {
		for headers, want := range map[string]struct {
			tokens, trust string // the status, and the headers at the node, with tokens and without
		}{
			"":                                    {"401", "200 [Bearer " + own + "]"},
			"Authorization: Bearer qtd_red_x\r\n": {"200 [Bearer qtd_red_x]", "200 [Bearer qtd_red_x]"},
			"Authorization: Bearer garbage\r\nConnection: Authorization\r\n":    {"200 []", "200 []"},
			"Authorization: Bearer garbage\r\nConnection: x, aUTHORIZATION\r\n": {"200 []", "200 []"},
			"Authorization:\r\n" + "Authorization: Bearer garbage\r\n":          {"401", "200 [Bearer " + own + "]"},
		} {
			address, seen := startNode(t)
			conf := config.Config{
				Machine: "node-7", Listen: config.Listen{TCP: []string{"127.0.0.1:0"}},
				Cluster:   config.Cluster{Nodes: []string{address}, Token: &config.Source{File: secret(t, "token", own)}},
				Upstreams: map[string]config.Upstream{"openai": {Base: "http://127.0.0.1:1", Plain: true}},
			}
			options := gateway.Options{}
			wanted := want.trust
			if asksTokens {
				conf.Tokens, options.Tokens, wanted = "tokens.yaml", someTokens{}, want.tokens
			}
			f := startUnready(t, nil, nil, conf, options)
			got := strings.Join(raw(t, "tcp", strings.TrimPrefix(f.url, "http://"), "POST /quota.v1.QuotaService/GetQuota HTTP/1.1\r\n"+
				"Host: localhost\r\nContent-Type: application/json\r\n"+headers+"Content-Length: 2\r\n\r\n{}", 1), "")
			for _, shown := range seen() {
				got += fmt.Sprint(" ", shown)
			}
			if got != wanted {
				t.Errorf("tokens %v, %q: got %s, want %s", asksTokens, headers, got, wanted)
			}
		}
	}
}

// TestAPI_LendsItsTokenToNoOperator: a local process without a token of its own cannot operate the cluster by the gateway's, however it
// spells the path.
func TestAPI_LendsItsTokenToNoOperator(t *testing.T) {
	for call, want := range map[string]string{
		"/quota.v1.QuotaService/GetQuota":                                   "200",
		"/quota.v1.TaskService/GetTask":                                     "200",
		"/quota.v1.TaskService/RetryTask":                                   "403",
		"/quota.v1.TaskService/ForgetTask":                                  "403",
		"/quota.v1.AdminService/GetStatus":                                  "403",
		"/quota.v1.%41dminService/GetStatus":                                "403",
		"/quota.v1.QuotaService/../quota.v1.AdminService/GetStatus":         "400",
		"/quota.v1.QuotaService/%2e%2e/quota.v1.AdminService/GetStatus":     "400",
		"/quota.v1.QuotaService/..%2fquota.v1.AdminService/GetStatus":       "400",
		"/quota.v1.LaterService/Anything":                                   "403",
		"/quota.v1.AdminService/GetStatus\nAuthorization: Bearer qtd_ops_x": "200",
	} {
		t.Run(call, func(t *testing.T) {
			var reached atomic.Int64
			address := startAPI(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "AdminService") && r.Header.Get("Authorization") != "Bearer qtd_ops_x" {
					reached.Add(1)
				}
				speak(200, `{}`)(w, r)
			})
			f := startUnready(t, nil, nil, config.Config{
				Machine: "node-7", Listen: config.Listen{TCP: []string{"127.0.0.1:0"}},
				Cluster:   config.Cluster{Nodes: []string{address}, Token: &config.Source{File: secret(t, "token", "qtd_gw_made-up")}},
				Upstreams: map[string]config.Upstream{"openai": {Base: "http://127.0.0.1:1", Plain: true}},
			}, gateway.Options{})
			target, header, _ := strings.Cut(call, "\n")
			if header != "" {
				header += "\r\n"
			}
			got := strings.Join(raw(t, "tcp", strings.TrimPrefix(f.url, "http://"), "POST "+target+" HTTP/1.1\r\n"+
				"Host: localhost\r\nContent-Type: application/json\r\n"+header+"Content-Length: 2\r\n\r\n{}", 1), "")
			if got != want || reached.Load() != 0 {
				t.Errorf("got %s, want %s; %d calls of operators at the node", got, want, reached.Load())
			}
		})
	}
}

// lost makes the first answer of a procedure get lost, and counts the calls that arrive.
func (c *cluster) lost(procedure string) (arrived *atomic.Int64) {
	arrived = &atomic.Int64{}
	loses := func(path, _ string) bool { return path == "/quota.v1."+procedure && arrived.Add(1) == 1 }
	c.loses.Store(&loses)
	return arrived
}

// TestAPI_IsSentAgainWhereThatIsSafe: a command whose answer was lost is repeated under the request id from the gateway or its caller;
// a read is repeated as well. A command without an id is sent once.
func TestAPI_IsSentAgainWhereThatIsSafe(t *testing.T) {
	reserve := &quotav1.ReserveRequest{Holder: "x@node-7", Items: []*quotav1.Item{{Quota: "t/core"}}, Consume: true}
	packed, err := proto.Marshal(reserve)
	if err != nil {
		t.Fatal(err)
	}
	framed := "\x00\x00\x00\x00" + string(rune(len(packed))) + string(packed)
	const asks = `"holder":"x@node-7","items":[{"quota":"t/core"}],"consume":true`
	for name, c := range map[string]struct {
		procedure, kind, body string
		status                int
		arrived, consumed     int64
	}{
		"JSON":               {"QuotaService/Reserve", "application/json", `{` + asks + `}`, 200, 2, 1},
		"JSON after spaces":  {"QuotaService/Reserve", "application/json; charset=utf-8", " { " + asks + "}", 200, 2, 1},
		"protobuf":           {"QuotaService/Reserve", "application/proto", string(packed), 200, 2, 1},
		"its own key":        {"QuotaService/Reserve", "application/json", `{"requestId":{"idempotencyKey":"k"},` + asks + `}`, 200, 2, 1},
		"its own key, other": {"QuotaService/Reserve", "application/json", `{"request_id":{"idempotency_key":"k"},` + asks + `}`, 200, 2, 1},
		"an empty id":        {"QuotaService/Reserve", "application/json", `{"requestId":{},` + asks + `}`, 502, 1, 1},
		"an id of nothing":   {"QuotaService/Reserve", "application/json", `{"requestId":{"session":"0"},` + asks + `}`, 502, 1, 1},
		"an id that is null": {"QuotaService/Reserve", "application/json", `{"requestId":null,` + asks + `}`, 502, 1, 1},
		"empty in protobuf":  {"QuotaService/Reserve", "application/proto", "\x0a\x00" + string(packed), 502, 1, 1},
		"no id is null":      {"QuotaService/Reserve", "application/json", `{` + asks + `,"wait":null}`, 200, 2, 1},
		"one that waits":     {"QuotaService/Reserve", "application/json", `{"wait":"1s",` + asks + `}`, 502, 1, 1},
		"a Batch":            {"QuotaService/Batch", "application/json", `{"commands":[{"reserve":{` + asks + `}}]}`, 502, 1, 1},
		"gRPC":               {"QuotaService/Reserve", "application/grpc", framed, 502, 1, 1},
		"a read":             {"QuotaService/GetQuota", "application/json", `{"name":"t/core"}`, 200, 2, 0},
		"a task":             {"TaskService/BeginTask", "application/json", `{"task":"T-1","holder":"x@node-7"}`, 0, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := tier(t)
			arrived := f.cluster.lost(c.procedure)
			got := f.do(http.MethodPost, "/quota.v1."+c.procedure, c.body, "Content-Type", c.kind)
			if c.status != 0 && got.status != c.status || arrived.Load() != c.arrived {
				t.Errorf("got %d %s; the call arrived %d times, want %d", got.status, got.body, arrived.Load(), c.arrived)
			}
			f.cluster.loses.Store(nil)
			if q := f.cluster.quota("t/core"); q.Consumed != c.consumed {
				t.Errorf("%d are consumed, want %d", q.Consumed, c.consumed)
			}
		})
	}
}

// TestAPI_OpensAnotherSession: when the gateway's session has ended, commands get a new one, and callers notice nothing.
func TestAPI_OpensAnotherSession(t *testing.T) {
	f := tier(t)
	const reserve = `{"holder":"x@node-7","items":[{"quota":"t/core"}],"consume":true}`
	var session atomic.Pointer[string]
	numbered := regexp.MustCompile(`"session":"(\d+)"`)
	reads := func(_, body string) bool {
		if found := numbered.FindStringSubmatch(body); found != nil {
			session.Store(&found[1])
		}
		return false
	}
	f.cluster.loses.Store(&reads)
	for range 2 {
		if got := f.do(http.MethodPost, "/quota.v1.QuotaService/Reserve", reserve); got.status != 200 || session.Load() == nil {
			t.Fatalf("got %d %s, with a request id: %v", got.status, got.body, session.Load() != nil)
		}
		first := *session.Load()
		if got := f.do(http.MethodPost, "/quota.v1.QuotaService/CloseSession", `{"session":"`+first+`"}`); got.status != 200 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
	if q := f.cluster.quota("t/core"); q.Consumed != 2 {
		t.Errorf("%d are consumed, want 2", q.Consumed)
	}
}

// TestAPI_SessionsAreOfTheirTokens: a command with a token is numbered in a session of that token.
func TestAPI_SessionsAreOfTheirTokens(t *testing.T) {
	var mu sync.Mutex
	opened := map[string]string{} // session by token
	var seen []string
	address := startAPI(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		token := r.Header.Get("Authorization")
		switch path.Base(r.URL.Path) {
		case "OpenSession":
			opened[token] = strconv.Itoa(len(opened) + 1)
			packed, _ := proto.Marshal(&quotav1.OpenSessionResponse{Session: uint64(len(opened))})
			w.Header().Set("Content-Type", "application/proto")
			_, _ = w.Write(packed)
		case "Reserve":
			body, _ := io.ReadAll(r.Body)
			seen = append(seen, token+" "+string(body))
			speak(200, `{}`)(w, r)
		default:
			speak(404, `{}`)(w, r)
		}
	})
	f := startUnready(t, nil, nil, config.Config{
		Machine: "node-7", Listen: config.Listen{TCP: []string{"127.0.0.1:0"}}, Cluster: config.Cluster{Nodes: []string{address}},
		Upstreams: map[string]config.Upstream{"openai": {Base: "http://127.0.0.1:1", Plain: true}},
	}, gateway.Options{})
	tokens := []string{"Bearer a", "Bearer b", "Bearer a", ""}
	for _, token := range tokens {
		f.do(http.MethodPost, "/quota.v1.QuotaService/Reserve", `{}`, "Authorization", token)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(opened) != 3 || len(seen) != len(tokens) {
		t.Fatalf("opened %v, seen %q", opened, seen)
	}
	for i, seq := range []string{"1", "1", "2", "1"} {
		want := tokens[i] + ` {"requestId":{"session":"` + opened[tokens[i]] + `","seq":"` + seq + `","ackedBelow":"` + seq + `"}}`
		if seen[i] != want {
			t.Errorf("call %d is %s, want %s", i, seen[i], want)
		}
	}
}

// startAPI starts a fake node and returns its address.
func startAPI(tb testing.TB, answer http.HandlerFunc) string {
	tb.Helper()
	node := httptest.NewUnstartedServer(answer)
	node.Config.Protocols = new(http.Protocols)
	node.Config.Protocols.SetHTTP1(true)
	node.Config.Protocols.SetUnencryptedHTTP2(true)
	node.Start()
	tb.Cleanup(node.Close)
	return strings.TrimPrefix(node.URL, "http://")
}

// TestAPI_GoesToTheLeaderAtOnce: the node that led last is asked first, and another one after it has gone.
func TestAPI_GoesToTheLeaderAtOnce(t *testing.T) {
	c := startCluster(t, rate("t/core", 100))
	var passed atomic.Int64
	follower := startAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Quotad-No-Forward") == "" && strings.HasSuffix(r.URL.Path, "/GetQuota") {
			passed.Add(1)
		}
		info, _ := proto.Marshal(&quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_NO_LEADER, NotAccepted: true, Outcome: quotav1.Outcome_OUTCOME_NOT_ACCEPTED,
			LeaderAddress: c.config.APIAddress,
		})
		speak(503, `{"code":"unavailable","message":"this node does not lead","details":[{"type":"quota.v1.ErrorInfo","value":"`+
			base64.RawStdEncoding.EncodeToString(info)+`"}]}`)(w, r)
	})
	conf := configOf(c, map[string]config.Upstream{"openai": {Base: "http://127.0.0.1:1", Plain: true}})
	conf.Cluster.Nodes = []string{follower, c.config.APIAddress}
	f := startUnready(t, c, nil, conf, gateway.Options{})
	if got := f.do(http.MethodPost, "/take?quota=t/core&holder=picard", ""); got.status != 200 {
		t.Fatalf("a take, by which the leader is found: %d %s", got.status, got.body)
	}
	for range 3 {
		if got := f.do(http.MethodPost, "/quota.v1.QuotaService/GetQuota", `{"name":"t/core"}`); got.status != 200 {
			t.Errorf("got %d %s", got.status, got.body)
		}
	}
	if n := passed.Load(); n != 0 {
		t.Errorf("%d calls went by a node that does not lead", n)
	}
	c.stop()
	answers := make(chan answer, 1)
	go func() { answers <- f.do(http.MethodPost, "/quota.v1.QuotaService/GetQuota", `{"name":"t/core"}`) }()
	eventually(t, "the other node is asked", func() bool { return passed.Load() > 0 })
	c.start()
	if got := <-answers; got.status != 200 {
		t.Errorf("a call that began while the leader was away: %d %s", got.status, got.body)
	}
}
