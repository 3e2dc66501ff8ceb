package rpc

import (
	"bytes"
	"compress/gzip"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// exposition serves metrics in Prometheus' text format. It gathers and formats them at most once a second: requests in between get the
// same bytes.
type exposition struct {
	from http.Handler
	last atomic.Pointer[metricsPage]
	// gathering is held while metrics are gathered.
	gathering sync.Mutex
}

// metricsPage holds the metrics of one moment.
type metricsPage struct {
	at     time.Time
	status int
	header http.Header
	plain  []byte
	packed func() []byte
}

func newExposition(gatherer prometheus.Gatherer) *exposition {
	return &exposition{from: promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{DisableCompression: true})}
}

// ServeHTTP implements http.Handler.
func (e *exposition) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page := e.current()
	body := page.plain
	maps.Copy(w.Header(), page.header)
	w.Header().Set("Vary", "Accept-Encoding")
	if page.status == http.StatusOK && acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		body = page.packed()
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(page.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}

// current returns the metrics, at most as old as healthEvery plus one gathering: a request during a gathering gets the last page.
func (e *exposition) current() *metricsPage {
	known := e.last.Load()
	switch {
	case known == nil:
		e.gathering.Lock()
	case time.Since(known.at) < healthEvery || !e.gathering.TryLock():
		return known
	}
	defer e.gathering.Unlock()
	if known := e.last.Load(); known != nil && time.Since(known.at) < healthEvery {
		return known
	}
	page := e.gather()
	e.last.Store(page)
	return page
}

func (e *exposition) gather() *metricsPage {
	page := &metricsPage{status: http.StatusOK, header: http.Header{}}
	kept := &keptAnswer{page: page}
	e.from.ServeHTTP(kept, &http.Request{Method: http.MethodGet, Header: http.Header{}})
	page.plain, page.at = kept.body.Bytes(), time.Now()
	page.packed = sync.OnceValue(func() []byte {
		var packed bytes.Buffer
		to := gzip.NewWriter(&packed)
		_, _ = to.Write(page.plain) // a buffer never fails
		_ = to.Close()
		return packed.Bytes()
	})
	return page
}

// acceptsGzip tells whether a request names gzip among the encodings that it takes.
func acceptsGzip(r *http.Request) bool {
	for _, header := range r.Header.Values("Accept-Encoding") {
		for encoding := range strings.SplitSeq(header, ",") {
			name, quality, _ := strings.Cut(strings.ReplaceAll(encoding, " ", ""), ";")
			weight, err := strconv.ParseFloat(strings.TrimPrefix(quality, "q="), 64)
			if strings.EqualFold(name, "gzip") && (quality == "" || err == nil && weight > 0) {
				return true
			}
		}
	}
	return false
}

// keptAnswer stores an answer in a page.
type keptAnswer struct {
	page *metricsPage
	body bytes.Buffer
}

// Header implements http.ResponseWriter.
func (k *keptAnswer) Header() http.Header { return k.page.header }

// Write implements http.ResponseWriter.
func (k *keptAnswer) Write(b []byte) (int, error) { return k.body.Write(b) }

// WriteHeader implements http.ResponseWriter.
func (k *keptAnswer) WriteHeader(status int) { k.page.status = status }
