package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Regression: Close iterated over the map that a limiter's own Close deletes from, which crashes the process.
func TestClose_ConcurrentWithLimiters(t *testing.T) {
	for range 20 {
		c := connected(t, full())
		var limiters []*Limiter
		for range 200 {
			limiters = append(limiters, c.Limiter("t/core"))
		}
		var closing sync.WaitGroup
		closing.Go(func() { _ = c.Close() })
		for _, limiter := range limiters {
			limiter.Close()
		}
		closing.Wait()
	}
}

// Regression: a body closed during Client.Close started goroutines that Close did not wait for, or panicked.
func TestClose_ConcurrentWithBodies(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for range rounds {
		c := connected(t, full())
		transport := NewTransport(c, roundTrip(func(*http.Request) (*http.Response, error) { return respond(200, nil, "x"), nil }), Match(core))
		var bodies []io.Closer
		for range 200 {
			response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "http://provider.example", nil))
			if err != nil {
				t.Fatal(err)
			}
			bodies = append(bodies, response.Body)
		}
		var closing sync.WaitGroup
		closing.Go(func() { _ = c.Close() })
		for half := range 2 {
			closing.Go(func() {
				for _, body := range bodies[100*half:][:100] {
					_ = body.Close()
				}
			})
		}
		closing.Wait()
	}
}

// Units that a batch still had when its client was closed are counted as forfeited, though no node can be asked.
func TestClose_CountsForfeitedUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connected(t, full(), WithCloseTimeout(time.Second))
		limiter := atWork(t, c)
		left := limiter.Stats().Left
		c.queue.close()
		limiter.releaseBatches()
		synctest.Wait()
		if got := limiter.Stats().Forfeited; got != uint64(left) {
			t.Errorf("%d forfeited of %d", got, left)
		}
		_ = c.Close()
	})
}
