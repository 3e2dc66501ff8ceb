package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// certificate writes a certificate for localhost and its key.
func certificate(t *testing.T, name string) config.Listen {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost", name}, NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return config.Listen{
		TCP:  []string{"127.0.0.1:0"},
		Cert: secret(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))),
		Key:  secret(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))),
	}
}

// injecting returns an upstream whose key is injected.
func injecting(t *testing.T, p *provider) config.Upstream {
	t.Helper()
	u := upstreamOf(p, "openai")
	u.Auth, u.Keys = "inject", []config.Key{{Name: "main", From: config.Source{File: secret(t, "key", "sk-made-up")}}}
	return u
}

// TestReload_IsJudgedByOpenListeners: the listeners stay until a restart, so a configuration with others is checked
// against the open ones.
func TestReload_IsJudgedByOpenListeners(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	socket := filepath.Join(t.TempDir(), "gateway.sock")
	pass, inject := config.Config{}, config.Config{}
	pass.Upstreams = map[string]config.Upstream{"openai": upstreamOf(p, "openai")}
	inject.Upstreams = map[string]config.Upstream{"openai": injecting(t, p)}
	for name, next := range map[string]func() config.Config{
		"socket alone": func() config.Config {
			inject.Listen = config.Listen{Unix: socket}
			return inject
		},
		"socket and port": func() config.Config {
			inject.Listen = config.Listen{Unix: socket, TCP: []string{"127.0.0.1:0"}}
			return inject
		},
		"nothing named": func() config.Config {
			inject.Listen = config.Listen{}
			return inject
		},
	} {
		conf := configOf(c, pass.Upstreams)
		f := startGateway(t, c, p, conf, gateway.Options{})
		server := f.serve()
		changed := next()
		changed.Machine, changed.Cluster = conf.Machine, conf.Cluster
		if err := server.Reload(changed); err == nil || !strings.Contains(err.Error(), "could use the keys") {
			t.Errorf("%s: got %v", name, err)
		}
		before := len(p.seen())
		request := "POST /openai/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 31\r\n\r\n" +
			`{"model":"gpt-5","messages":[]}`
		if got := raw(t, "tcp", server.Addresses()[0], request, 1); len(got) != 1 || got[0] != "200" {
			t.Errorf("%s: the old configuration does not serve: %v", name, got)
		}
		if sent := p.seen()[before]; sent.header.Get("Authorization") != "" {
			t.Errorf("%s: the provider saw a key", name)
		}
		changed.Trust = true
		if err := server.Reload(changed); err != nil {
			t.Errorf("%s, trusting: %v", name, err)
		}
	}
}

// A program that serves the handler at another address does not bypass the configuration.
func TestInject_NeedsProofOnTheConnection(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	conf := configOf(c, map[string]config.Upstream{"openai": injecting(t, p)})
	conf.Listen = config.Listen{Unix: filepath.Join(t.TempDir(), "gateway.sock")}
	f := startGateway(t, c, p, conf, gateway.Options{})
	if got := f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5","input":"x"}`); got.status != http.StatusForbidden {
		t.Errorf("over TCP: %d %s", got.status, got.body)
	}
	if n := len(p.seen()); n != 0 {
		t.Errorf("the provider saw %d calls", n)
	}
	f.serve()
	request := "POST /openai/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 31\r\n\r\n" + `{"model":"gpt-5","messages":[]}`
	if got := raw(t, "unix", conf.Listen.Unix, request, 1); len(got) != 1 || got[0] != "200" {
		t.Errorf("over the socket: %v", got)
	}
}

// shows returns the last name in the certificate that a server presents.
func shows(t *testing.T, address string) string {
	t.Helper()
	connection, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // only looked at
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	names := connection.ConnectionState().PeerCertificates[0].DNSNames
	return names[len(names)-1]
}

func TestReload_TakesConfigurationAndCertificateOrNeither(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.Listen = certificate(t, "first.example")
	f := startGateway(t, c, p, conf, gateway.Options{})
	server := f.serve()
	other := conf
	other.Upstreams = map[string]config.Upstream{"other": upstreamOf(p, "openai")}
	is := func(when, certificate, path string) {
		t.Helper()
		if got := shows(t, server.Addresses()[0]); got != certificate {
			t.Errorf("%s: the certificate is of %s", when, got)
		}
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path+"/v1/models", nil)
		request.Host = "localhost"
		answer := httptest.NewRecorder()
		f.gateway.Handler().ServeHTTP(answer, request)
		if answer.Code != http.StatusOK {
			t.Errorf("%s: %s is %d", when, path, answer.Code)
		}
	}
	is("at first", "first.example", "/openai")
	other.Listen.Key = secret(t, "key.pem", "no key")
	if err := server.Reload(other); err == nil {
		t.Error("a broken key was taken")
	}
	is("with a broken key", "first.example", "/openai")
	bad := conf
	bad.Listen, bad.Root = certificate(t, "second.example"), "nowhere"
	if err := server.Reload(bad); err == nil {
		t.Error("a wrong configuration was taken")
	}
	is("with a wrong configuration", "first.example", "/openai")
	other.Listen = certificate(t, "third.example")
	if err := server.Reload(other); err != nil {
		t.Error(err)
	}
	is("with both right", "third.example", "/other")
	// Without a certificate in the configuration, the open listener keeps its own, and rereads it later.
	plain := conf
	plain.Listen = config.Listen{TCP: conf.Listen.TCP}
	if err := server.Reload(plain); err != nil {
		t.Error(err)
	}
	is("without one", "third.example", "/openai")
	if err := os.Remove(other.Listen.Cert); err != nil {
		t.Fatal(err)
	}
	if err := server.Reload(other); err == nil {
		t.Error("a certificate that is gone was taken")
	}
	is("gone", "third.example", "/openai")
}

// TestReload_KeepsWhichKeyMadeAnAnswer: a call that continues an answer uses that answer's key, even after a reload, and after its
// holder used another key.
func TestReload_KeepsWhichKeyMadeAnAnswer(t *testing.T) {
	c := startCluster(t, rate("openai-a/gpt-5/requests", 100), rate("openai-b/gpt-5/requests", 100))
	var made atomic.Int64
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		speak(200, fmt.Sprintf(`{"object":"response","id":"resp_%d","status":"completed","usage":{"input_tokens":1,"output_tokens":1}}`,
			made.Add(1)))(w, r)
	})
	conf := withTwoKeys(t, c, p)
	f := startGateway(t, c, p, conf, gateway.Options{})
	ask := func(holder, more string) (key string) {
		got := f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5","input":"x"`+more+`}`, "X-Quotad-Holder", holder)
		if got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		seen := p.seen()
		return seen[len(seen)-1].header.Get("Authorization")
	}
	free := func(key int) int64 { return f.gateway.Status().Upstreams[0].Keys[key].Free }
	ask("one", "")
	eventually(t, "b has more room", func() bool { return free(0) < free(1) })
	for range 3 { // the holder stays with its key
		if key := ask("two", ""); key != "Bearer b" {
			t.Fatalf("the key with more room is %q", key)
		}
	}
	eventually(t, "a has more room", func() bool { return free(1) < free(0) })
	if err := f.gateway.Reload(conf); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if key := ask(fmt.Sprint("reader-", i), `,"previous_response_id":"resp_4"`); key != "Bearer b" {
			t.Errorf("after a reload the answer of b is continued with %q", key)
		}
	}
}

// TestReload_NamesChangesThatNeedRestart: adding or removing the token file is refused, and the machine's name stays: the cluster's token
// and the batches are for the old one. The number of seats changes.
func TestReload_NamesChangesThatNeedRestart(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	f := startGateway(t, c, p, conf, gateway.Options{})
	with := conf
	with.Tokens = "tokens.yaml"
	if err := f.gateway.Reload(with); err == nil || !strings.Contains(err.Error(), "restart") || strings.Contains(err.Error(), "Options") {
		t.Errorf("with a token file: %v", err)
	}
	conf.Machine, conf.Identity.Seats.Count = "node-8", 1
	if err := f.gateway.Reload(conf); err != nil {
		t.Fatal(err)
	}
	if got := f.gateway.Status().Machine; got != "node-7" {
		t.Errorf("after a reload the machine is %s", got)
	}
	for _, session := range []string{"first", "second"} {
		f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-5","input":"x"}`, "x-claude-code-session-id", session)
	}
	if got := f.gateway.Status().Seats; len(got) != 1 {
		t.Errorf("of one seat, these are taken: %+v", got)
	}
}
