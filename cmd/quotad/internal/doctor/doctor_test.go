package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a fake node with the calls that doctor makes.
type node struct {
	quotav1connect.UnimplementedQuotaServiceHandler
	quotav1connect.UnimplementedAdminServiceHandler
	status *quotav1.GetStatusResponse
	quotas []*quotav1.QuotaStatus
	// denied refuses every call; noLeader refuses those that have to be committed.
	denied, noLeader bool
	// full is the reason why no session is opened.
	full *quotav1.ErrorInfo
}

func (n *node) GetStatus(context.Context, *quotav1.GetStatusRequest) (*quotav1.GetStatusResponse, error) {
	if n.denied {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("no token was sent"))
	}
	return n.status, nil
}

func (n *node) OpenSession(context.Context, *quotav1.OpenSessionRequest) (*quotav1.OpenSessionResponse, error) {
	if n.noLeader {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("no leader is known"))
	}
	if n.full != nil {
		return nil, typed(n.full)
	}
	return &quotav1.OpenSessionResponse{Session: 1}, nil
}

// typed returns an error with a typed detail.
func typed(info *quotav1.ErrorInfo) error {
	err := connect.NewError(connect.CodeResourceExhausted, errors.New("from the node"))
	detail, detailErr := connect.NewErrorDetail(info)
	if detailErr != nil {
		panic(detailErr)
	}
	err.AddDetail(detail)
	return err
}

func (n *node) CloseSession(_ context.Context, r *quotav1.CloseSessionRequest) (*quotav1.CloseSessionResponse, error) {
	switch {
	case n.noLeader, n.full.GetReason() == quotav1.Reason_REASON_OVERLOADED:
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("no leader is known"))
	case r.Session != 1:
		return nil, typed(&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_SESSION})
	}
	return &quotav1.CloseSessionResponse{}, nil
}

func (n *node) ListQuotas(context.Context, *quotav1.ListQuotasRequest) (*quotav1.ListQuotasResponse, error) {
	return &quotav1.ListQuotasResponse{Quotas: n.quotas}, nil
}

func (n *node) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(quotav1connect.NewQuotaServiceHandler(n))
	mux.Handle(quotav1connect.NewAdminServiceHandler(n))
	mux.HandleFunc("/livez", func(http.ResponseWriter, *http.Request) {})
	return mux
}

func healthy() *node {
	quota := func(name string, usable, available int64) *quotav1.QuotaStatus {
		return &quotav1.QuotaStatus{Definition: &quotav1.Quota{Name: name}, Usable: usable, AvailableWithParents: available}
	}
	closed := quota("openai/tokens", 10, 10)
	closed.CooldownLeft = durationpb.New(90 * time.Second)
	return &node{
		status: &quotav1.GetStatusResponse{ClusterId: "c1", Node: "n1", Role: "leader", Leader: "n1", Version: "0.1.0"},
		quotas: []*quotav1.QuotaStatus{quota("github/core", 5000, 4000), quota("suspended", 0, 0), quota("used-up", 10, 0), closed},
	}
}

// examine examines a client of these addresses.
func examine(t *testing.T, settings *tls.Config, now func() time.Time, quotas []string, addresses ...string) string {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: settings}
	defer transport.CloseIdleConnections()
	c := &Client{Transport: transport, Timeout: 20 * time.Second, Quotas: quotas, Now: now}
	for _, address := range addresses {
		parsed, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: transport}
		c.Servers = append(c.Servers, Server{
			Address: parsed.Host, URL: parsed, Quota: quotav1connect.NewQuotaServiceClient(client, address),
			Admin: quotav1connect.NewAdminServiceClient(client, address),
		})
	}
	var out strings.Builder
	for _, f := range c.Examine(t.Context()) {
		fmt.Fprintf(&out, "%s: %s: %s (%s)\n", f.Check, f.State, f.Message, f.Hint)
		if f.State == Failed && f.Hint == "" {
			t.Errorf("%s failed without a hint", f.Check)
		}
	}
	return out.String()
}

func serve(t *testing.T, n *node) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(n.handler())
	t.Cleanup(server.Close)
	return server
}

// says checks that findings contain the texts, and that they contain no other failure.
func says(t *testing.T, found string, texts ...string) {
	t.Helper()
	failures := 0
	for _, text := range texts {
		if !strings.Contains(found, text) {
			t.Errorf("the findings lack %q:\n%s", text, found)
		}
		if strings.Contains(text, ": failed: ") {
			failures++
		}
	}
	if got := strings.Count(found, ": failed: "); got != failures {
		t.Errorf("%d failures, want %d:\n%s", got, failures, found)
	}
}

// TestExamine_ReportsEachTrouble: each layer's failure comes with a hint, and each passed check is reported as ok.
func TestExamine_ReportsEachTrouble(t *testing.T) {
	good := serve(t, healthy())
	says(t, examine(t, nil, time.Now, nil, good.URL), ": ok: this machine and the node agree",
		"ok: quotad 0.1.0, node n1 (leader) of cluster c1",
		"leader: ok: n1 leads", "requests: ok: ", "quotas: ok: the cluster has 4")
	says(t, examine(t, nil, time.Now, []string{"github/core", "githb/core", "suspended", "used-up", "openai/tokens"}, good.URL),
		"quota github/core: ok: 4000 of 5000 available", `quota githb/core: failed: there is no such quota (did you mean "github/core"?)`,
		"quota suspended: failed: suspended", "quota used-up: warning: nothing is available", "quota openai/tokens: warning: closed for 1m30s")

	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	says(t, examine(t, nil, time.Now, nil, gone.URL), ": failed: cannot be reached: connection refused (nothing listens there")
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	says(t, examine(t, nil, time.Now, nil, other.URL), ": failed: the program that answers there is not quotad")

	ahead := func() time.Time { return time.Now().Add(2 * time.Hour) }
	says(t, examine(t, nil, ahead, nil, good.URL), ": warning: this machine and the node are 2h0m0s apart")

	closed := healthy()
	closed.denied = true
	says(t, examine(t, nil, time.Now, nil, serve(t, closed).URL), ": failed: no token was sent (name the file with the token")

	alone := healthy()
	alone.status = &quotav1.GetStatusResponse{
		ClusterId: "c1", Node: "n2", Role: "candidate", Checks: []*quotav1.HealthCheck{{Name: "leader", Message: "none"}},
	}
	alone.noLeader = true
	says(t, examine(t, nil, time.Now, nil, serve(t, alone).URL), ": warning: leader: none", "leader: failed: no leader is known",
		"requests: failed: a request cannot be committed: no leader is known")

	outsider, follower := healthy(), healthy()
	outsider.status.ClusterId = "c2"
	says(t, examine(t, nil, time.Now, nil, good.URL, serve(t, outsider).URL), "cluster: failed: ")
	follower.status.Node, follower.status.Role, follower.status.LeaderAddress = "n2", "follower", strings.TrimPrefix(gone.URL, "http://")
	says(t, examine(t, nil, time.Now, nil, serve(t, follower).URL), "leader: warning: n1 leads at ",
		"cannot be reached from here (connection refused)")
	follower.status.LeaderAddress = strings.TrimPrefix(good.URL, "http://")
	says(t, examine(t, nil, time.Now, nil, serve(t, follower).URL), "leader: ok: n1 leads at ")

	empty := healthy()
	empty.quotas = nil
	says(t, examine(t, nil, time.Now, nil, serve(t, empty).URL), "quotas: warning: the cluster has none")
	says(t, examine(t, nil, time.Now, nil, gone.URL, good.URL), ": failed: cannot be reached", "leader: ok")
}

// TestExamine_ReportsFullTables: a cluster without room for a session still commits requests. Doctor names what is full, as a
// warning.
func TestExamine_ReportsFullTables(t *testing.T) {
	for name, c := range map[string]struct {
		full *quotav1.ErrorInfo
		says string
	}{
		"sessions": {
			&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_SESSIONS_FULL},
			"requests: warning: no room for a session (full: sessions), although",
		},
		"memory": {
			&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_MEMORY_FULL},
			"requests: warning: no room for a session (full: memory), although",
		},
		"a caller": {
			&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_CALLER_BUDGET, Budget: "sessions"},
			"requests: warning: no room for a session (full: sessions)",
		},
		"no reason": {&quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_OVERLOADED}, "requests: failed: a request cannot be committed"},
	} {
		t.Run(name, func(t *testing.T) {
			n := healthy()
			n.full = c.full
			says(t, examine(t, nil, time.Now, nil, serve(t, n).URL), c.says)
		})
	}
}

// TestExamine_ReportsTroubleOfTLS: the message says which side causes a TLS failure.
func TestExamine_ReportsTroubleOfTLS(t *testing.T) {
	secure := httptest.NewTLSServer(healthy().handler())
	defer secure.Close()
	plain := serve(t, healthy())
	pool := x509.NewCertPool()
	pool.AddCert(secure.Certificate())
	trusting := func() *tls.Config { return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13} }
	end := secure.Certificate().NotAfter

	says(t, examine(t, trusting(), time.Now, nil, secure.URL), ": ok: the node's certificate is good until ", "requests: ok")
	says(t, examine(t, &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}, time.Now, nil, secure.URL),
		": failed: tls: failed to verify certificate: x509: certificate signed by unknown authority (--ca-file")
	says(t, examine(t, trusting(), time.Now, nil, strings.Replace(secure.URL, "127.0.0.1", "localhost", 1)), ": failed: ",
		"use a name of the certificate")
	says(t, examine(t, trusting(), time.Now, nil, strings.Replace(plain.URL, "http:", "https:", 1)), ": failed: ",
		"the node speaks clear text")
	says(t, examine(t, nil, time.Now, nil, strings.Replace(secure.URL, "https:", "http:", 1)),
		": failed: the node speaks TLS only (name the CA")
	soon := func() time.Time { return end.Add(-time.Hour) }
	says(t, examine(t, trusting(), soon, nil, secure.URL), ": warning: the node's certificate ends on ")

	asking := httptest.NewUnstartedServer(healthy().handler())
	asking.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13}
	asking.Config.ErrorLog = log.New(io.Discard, "", 0) // discards an error for each handshake without a certificate
	asking.StartTLS()
	defer asking.Close()
	says(t, examine(t, trusting(), time.Now, nil, asking.URL), ": failed: no answer over HTTP: ", "the node asks for a certificate")
}
