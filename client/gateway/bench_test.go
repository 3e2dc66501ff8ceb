package gateway_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// BenchmarkAdded compares a call through a plain reverse proxy with calls through the gateway: without quotas, and from a batch. Client,
// provider and proxy are in this process. Its processor time per call depends less on other processes than the time per call does.
func BenchmarkAdded(b *testing.B) {
	if testing.Short() {
		b.Skip("it starts a cluster")
	}
	answer := bytes.Repeat([]byte("x"), 1<<10)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		_, _ = w.Write(answer)
	}))
	b.Cleanup(provider.Close)
	to, err := url.Parse(provider.URL)
	if err != nil {
		b.Fatal(err)
	}
	plain := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	b.Cleanup(plain.Close)
	c := startCluster(b, rate("batched/calls", 60_000_000))
	rules := []config.Rule{{Path: "/paid/**", Use: map[string]int64{"batched/calls": 1}}}
	conf := configOf(c, map[string]config.Upstream{"api": {Dialect: "generic", Base: provider.URL, Plain: true, Batch: true, Rules: rules}})
	g, err := gateway.New(conf, gateway.Options{Logger: slog.New(slog.NewJSONHandler(io.Discard, nil))})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = g.Close() })
	server, err := g.Listen(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(b.Context()) }()
	base := "http://" + server.Addresses()[0]
	eventually(b, "calls are taken out of batches", func() bool {
		post(b, base+"/api/paid/x", "{}")
		return strings.Contains(get(b, base+"/metrics"), `quotad_gateway_batched_total{upstream="api"}`)
	})
	for _, path := range []struct{ name, url string }{
		{"direct", provider.URL}, {"proxy", plain.URL}, {"ungoverned", base + "/api/free"}, {"batch", base + "/api/paid/x"},
	} {
		b.Run(path.name, func(b *testing.B) { callsOf(b, path.url) })
	}
}

func get(b *testing.B, url string) string {
	b.Helper()
	response, err := http.Get(url)
	return read(b, response, err)
}

func post(b *testing.B, url, body string) {
	b.Helper()
	response, err := http.Post(url, "text/plain", strings.NewReader(body))
	read(b, response, err)
}

func read(b *testing.B, response *http.Response, err error) string {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s, %v", response.Status, data, err)
	}
	return string(data)
}

func callsOf(b *testing.B, url string) {
	b.Helper()
	body := strings.Repeat("y", 4<<10)
	b.ReportAllocs()
	before := spent(b)
	for b.Loop() {
		post(b, url, body)
	}
	after := spent(b)
	b.ReportMetric(float64((after.cpu-before.cpu).Microseconds())/float64(b.N), "cpu-us/op")
	b.ReportMetric(float64(after.switches-before.switches)/float64(b.N), "switches/op")
}

// use is what this process has used of the machine.
type use struct {
	cpu      time.Duration
	switches int64
}

func spent(b *testing.B) use {
	b.Helper()
	var said syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &said); err != nil {
		b.Fatal(err)
	}
	return use{time.Duration(said.Utime.Nano() + said.Stime.Nano()), said.Nvcsw}
}
