package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/providertest"
)

// wish is a call that an agent wants to make.
type wish struct {
	api                api
	method, path, body string
	id                 string
}

// provider is an agent's access to the provider.
type provider struct {
	url, key, holder string
	base             *http.Transport
}

func newProvider(url, key, holder string) *provider {
	base := http.DefaultTransport.(*http.Transport).Clone() //nolint:errcheck,forcetypeassert // nobody replaces it here
	base.Proxy = nil
	base.MaxIdleConnsPerHost = 16
	return &provider{url: url, key: key, holder: holder, base: base}
}

// RoundTrip sends one attempt and records its time. It is below everything that governs or repeats calls, so it sees every
// attempt.
func (p *provider) RoundTrip(r *http.Request) (*http.Response, error) {
	if s, ok := r.Context().Value(sendingKey{}).(*sending); ok {
		s.note(time.Now())
	}
	return p.base.RoundTrip(r)
}

// send sends a call once through the client and returns the answer's status and headers; it reads and discards the body.
func (p *provider) send(ctx context.Context, through *http.Client, w wish) (int, http.Header, error) {
	r, err := http.NewRequestWithContext(ctx, w.method, p.url+w.path, strings.NewReader(w.body))
	if err != nil {
		return 0, nil, err
	}
	if w.body == "" {
		r.Body, r.GetBody, r.ContentLength = http.NoBody, nil, 0
	}
	r.Header.Set("Authorization", "Bearer "+p.key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(providertest.HolderHeader, p.holder)
	r.Header.Set(providertest.CallHeader, w.id)
	response, err := through.Do(r)
	if err != nil {
		return 0, nil, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Header, errors.Join(err, response.Body.Close())
}

// sending records when a call was last sent to the provider, and how often.
type sending struct {
	mu    sync.Mutex
	at    time.Time
	times int
}

type sendingKey struct{}

func withSending(ctx context.Context) (context.Context, *sending) {
	s := &sending{}
	return context.WithValue(ctx, sendingKey{}, s), s
}

func (s *sending) note(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = at
	s.times++
}

func (s *sending) last() (at time.Time, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, s.times
}

// judge returns the outcome of a call.
func judge(ctx context.Context, status int, err error) (outcome, string) {
	var refusal *client.RefusalError
	switch {
	case err == nil && status < 300:
		return done, ""
	case ctx.Err() != nil:
		return cutOff, ""
	case errors.As(err, &refusal), errors.Is(err, client.ErrClusterAway):
		return refused, err.Error()
	case err != nil:
		return failed, err.Error()
	case limited(status):
		return gaveUp, fmt.Sprintf("status %d", status)
	}
	return failed, fmt.Sprintf("status %d", status)
}

// limited reports whether a status means that a limit was hit. The provider uses these two for nothing else.
func limited(status int) bool {
	return status == http.StatusForbidden || status == http.StatusTooManyRequests
}

// pause waits for d, and returns false if the context ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
