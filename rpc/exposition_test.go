package rpc_test

import (
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/rpc"
)

// TestMetrics_GatheredOnceASecond: a flood of requests gathers metrics no more often than health is checked. Meanwhile another address
// gets them without a token.
func TestMetrics_GatheredOnceASecond(t *testing.T) {
	var gathered atomic.Int64
	n, _ := guarded(t, func(c *rpc.Config) {
		rpc.AlwaysBusy(c)
		c.Registry = prometheus.NewRegistry()
		c.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "looked"}, func() float64 {
			return float64(gathered.Add(1))
		}))
	})
	ctx, stop := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	var asked atomic.Int64
	for range 100 {
		flood.Go(func() {
			for ctx.Err() == nil {
				if status, _ := get(t, n.url+"/metrics"); status == http.StatusOK {
					asked.Add(1)
				}
			}
		})
	}
	defer flood.Wait()
	defer stop()
	scraper := scraperFrom(t, net.IPv4(127, 0, 9, 1))
	for range 20 {
		res, err := scraper.Get(n.url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), "quotad_api_calls_in_flight") {
			t.Fatalf("another address: %d %.200s %v", res.StatusCode, body, err)
		}
	}
	eventually(t, "the flood is served often", func() bool { return asked.Load() > 50*gathered.Load() })
}

// TestMetrics_Packed: metrics are the same for requests that accept gzip and for those that refuse it.
func TestMetrics_Packed(t *testing.T) {
	n := newNodes(t, 1)[0]
	for accepts, packed := range map[string]bool{"gzip": true, "deflate, gzip;q=0.5": true, "gzip;q=0": false, "br": false, "": false} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.url+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", accepts)
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body := io.Reader(res.Body)
		if got := res.Header.Get("Content-Encoding") == "gzip"; got != packed {
			t.Errorf("%q: packed %v", accepts, got)
		} else if got {
			if body, err = gzip.NewReader(res.Body); err != nil {
				t.Fatal(err)
			}
		}
		text, err := io.ReadAll(body)
		_ = res.Body.Close()
		if err != nil || !strings.Contains(string(text), "quotad_api_calls_in_flight") || !strings.HasPrefix(res.Header.Get("Content-Type"),
			"text/plain") {
			t.Errorf("%q: %.100s %v %v", accepts, text, res.Header, err)
		}
	}
}

// scraperFrom makes a client that calls from another address of this machine.
func scraperFrom(t *testing.T, ip net.IP) *http.Client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: ip}}
	transport := &http.Transport{DialContext: dialer.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
