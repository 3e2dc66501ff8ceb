package gateway_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// startNode starts a fake node that answers each call of the API with {}, and returns its address and the Authorization headers of the
// GetQuota calls that it saw.
func startNode(tb testing.TB) (address string, seen func() [][]string) {
	tb.Helper()
	var mu sync.Mutex
	var all [][]string
	node := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/GetQuota") {
			mu.Lock()
			all = append(all, r.Header.Values("Authorization"))
			mu.Unlock()
		}
		speak(200, `{}`)(w, r)
	}))
	node.Config.Protocols = new(http.Protocols)
	node.Config.Protocols.SetHTTP1(true)
	node.Config.Protocols.SetUnencryptedHTTP2(true)
	node.Start()
	tb.Cleanup(node.Close)
	return strings.TrimPrefix(node.URL, "http://"), func() [][]string {
		mu.Lock()
		defer mu.Unlock()
		return append([][]string(nil), all...)
	}
}

// TestAPI_NeverLendsTheGatewaysTokenWhereCallersNeedTheirOwn: a proxy removes the headers that Connection names, so a caller could show a
// credential here that no node ever sees.
func TestAPI_NeverLendsTheGatewaysTokenWhereCallersNeedTheirOwn(t *testing.T) {
	const own = "qtd_gw_made-up"
	for _, asksTokens := range []bool{true, false} {
		for headers, want := range map[string]struct {
			tokens, trust string // the status and what the node sees, with tokens and without
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
