package live

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
)

// order is the body of a request: its cost and its processing time, which in a real request follow from the size of the
// prompt.
type order struct {
	Holder  string            `json:"holder"`
	Amounts []provider.Amount `json:"amounts"`
	Work    time.Duration     `json:"work"`
}

// server is the provider as an HTTP server with GitHub's headers and statuses. It counts on arrival and by its own clock;
// requests are delayed as the fleet's network says.
type server struct {
	url     string
	began   time.Time
	names   []string
	network fleet.Span
	http    *http.Server
	serving sync.WaitGroup

	mu       sync.Mutex
	provider *provider.Provider
	dice     *rand.Rand
	// written are the times, by number, at which attempts that have not arrived yet were written.
	written  map[string]int64
	attempts []Attempt
}

// Attempt is one attempt of a call as the provider saw it.
type Attempt struct {
	// At is its arrival since the run began; Way is the time since it was written, 0 if its writer had not reported yet.
	At  time.Duration `json:"at"`
	Way time.Duration `json:"way"`
	// Holder sent it; Amounts are its amounts of limits.
	Holder  string            `json:"holder"`
	Amounts []provider.Amount `json:"amounts"`
	// Refused: the limit with the index Limit, or its outage, refused it.
	Refused bool `json:"refused,omitempty"`
	Outage  bool `json:"outage,omitempty"`
	Limit   int  `json:"limit,omitempty"`
}

// Headers that no real provider has: they serve the evaluation of a run.
const (
	attemptHeader = "X-Run-Attempt"
	outageHeader  = "X-Run-Outage"
)

// serve starts a provider on loopback; its times count from began.
func serve(ctx context.Context, p *provider.Provider, began time.Time, network fleet.Span, seed uint64) (*server, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{
		url: "http://" + listener.Addr().String(), began: began, names: resources(p), network: network, provider: p,
		dice: rand.New(rand.NewPCG(seed, 0)), written: map[string]int64{},
	}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	s.serving.Go(func() { _ = s.http.Serve(listener) }) // it always ends with an error; callers notice a broken one
	return s, nil
}

// close stops the server; after it returns nil, nothing is counted any more.
func (s *server) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	s.serving.Wait()
	return err
}

// resources returns the provider's names of its limits: the quotas' names, reduced to letters that GitHub's names use.
func resources(p *provider.Provider) []string {
	var names []string
	for _, m := range p.Meters() {
		names = append(names, strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' {
				return r
			}
			return '_'
		}, m.Rule().Quota))
	}
	return names
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&o); err != nil || !s.has(o.Amounts) {
		http.Error(w, `{"message":"Problems parsing JSON"}`, http.StatusBadRequest)
		return
	}
	if !pause(r.Context(), s.way()) {
		return // it never arrives
	}
	answer := s.arrive(o, r.Header.Get(attemptHeader))
	if !answer.Refused {
		pause(r.Context(), o.Work)
		s.mu.Lock()
		s.provider.Done(s.now(), o.Amounts)
		s.mu.Unlock()
	}
	pause(r.Context(), s.way())
	s.answer(w, o, answer)
}

// has reports whether the amounts are valid and name existing limits.
func (s *server) has(amounts []provider.Amount) bool {
	for _, a := range amounts {
		if a.Limit < 0 || a.Limit >= len(s.names) || a.N < 0 {
			return false
		}
	}
	return len(amounts) > 0
}

func (s *server) now() int64 { return int64(time.Since(s.began)) }

// way returns a random delay of the fleet's network.
func (s *server) way() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.network.Least + time.Duration(s.dice.Int64N(int64(s.network.Most-s.network.Least)+1))
}

// wrote records the time at which an attempt was written.
func (s *server) wrote(attempt string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[attempt] = s.now()
}

// arrive counts an attempt on its arrival.
func (s *server) arrive(o order, attempt string) provider.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	said := s.provider.Arrive(now, o.Amounts)
	seen := Attempt{
		At: time.Duration(now), Holder: o.Holder, Amounts: o.Amounts, Refused: said.Refused, Outage: said.Outage, Limit: said.Limit,
	}
	if written, ok := s.written[attempt]; ok {
		seen.Way = time.Duration(now - written)
		delete(s.written, attempt)
	}
	s.attempts = append(s.attempts, seen)
	return said
}

// answer answers as GitHub does: an exhausted window is a 403 with nothing remaining, any other refusal a secondary limit
// with a Retry-After.
func (s *server) answer(w http.ResponseWriter, o order, said provider.Answer) {
	header := w.Header()
	header.Set("Content-Type", "application/json; charset=utf-8")
	for _, count := range said.Counts {
		if said.Refused && count.Limit != said.Limit {
			continue
		}
		limit := s.provider.Meters()[count.Limit].Rule().Limit
		header.Set("X-Ratelimit-Limit", strconv.FormatInt(limit, 10))
		header.Set("X-Ratelimit-Remaining", strconv.FormatInt(count.Left, 10))
		header.Set("X-Ratelimit-Used", strconv.FormatInt(limit-count.Left, 10))
		header.Set("X-Ratelimit-Reset", strconv.FormatInt(wholeSecond(s.began.Add(time.Duration(count.ResetAt))), 10))
		header.Set("X-Ratelimit-Resource", s.names[count.Limit])
		break // GitHub reports one limit in an answer
	}
	switch {
	case !said.Refused:
		body := map[string]int64{}
		for _, a := range o.Amounts {
			body[usageField(s.names[a.Limit])] = a.N
		}
		_ = json.NewEncoder(w).Encode(body) // fails only if the caller has left
	case said.Exhausted && !said.Outage:
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w,
			`{"message":"API rate limit exceeded for user ID `+
				`1.","documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api"}`)
	default:
		if said.RetryAfter > 0 {
			header.Set("Retry-After", strconv.FormatInt(int64(said.RetryAfter/time.Second), 10))
		}
		if said.Outage {
			header.Set(outageHeader, "true")
		}
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`)
	}
}

// usageField is the field of an answer's body with the amount used of a limit.
func usageField(resource string) string { return "total_" + resource }

// wholeSecond rounds a time up to a second of Unix time.
func wholeSecond(t time.Time) int64 { return t.Add(time.Second - 1).Unix() }

// pause waits for d; it returns false if the context ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
