package providertest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxBody bounds the length of a request body, in bytes.
const maxBody = 8 << 20

// Fault is a deliberate fault of the provider. A request gets at most one: the first matching one that is not used up. A fault with a
// Status or Close replaces the limits' answer and charges nothing.
type Fault struct {
	// Key, Holder and Path select the requests, Path by its prefix; empty: any.
	Key    string `json:"key,omitempty"`
	Holder string `json:"holder,omitempty"`
	Path   string `json:"path,omitempty"`
	// Times is the number of requests that get it; 0: 1.
	Times int `json:"times,omitempty"`
	// Status is the answer's status: 429, 403, 500 and so on.
	Status int `json:"status,omitempty"`
	// RetryAfter is the answer's Retry-After; 0: none.
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
	// Body is the answer's body.
	Body string `json:"body,omitempty"`
	// Close closes the connection without an answer, after reading the request.
	Close bool `json:"close,omitempty"`
	// Delay delays the request; with neither Status nor Close, the limits then apply.
	Delay time.Duration `json:"delay,omitempty"`
}

func (f Fault) fits(x *exchange) bool {
	return (f.Key == "" || f.Key == x.key) && (f.Holder == "" || f.Holder == x.r.Header.Get(HolderHeader)) &&
		strings.HasPrefix(x.r.URL.Path, f.Path)
}

// Inject adds a fault after the present ones.
func (p *Provider) Inject(f Fault) {
	f.Times = max(f.Times, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
}

// takeFault returns the fault for the request, if any.
func (p *Provider) takeFault(x *exchange) (Fault, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, f := range p.faults {
		if !f.fits(x) {
			continue
		}
		if p.faults[i].Times--; p.faults[i].Times == 0 {
			p.faults = slices.Delete(p.faults, i, i+1)
		}
		return f, true
	}
	return Fault{}, false
}

// fail answers according to the fault.
func (x *exchange) fail(f Fault) {
	status := f.Status
	if f.Close {
		status = 0
	}
	x.p.mu.Lock()
	x.recordLocked(x.p.cfg.Now(), "", 0, status, Injected, time.Time{})
	x.p.mu.Unlock()
	if f.Close {
		// This closes the connection without a log message, by net/http's own means.
		panic(http.ErrAbortHandler)
	}
	if f.RetryAfter > 0 {
		x.w.Header().Set("Retry-After", wholeSeconds(f.RetryAfter))
	}
	x.answer(status, f.Body)
}

func (x *exchange) unauthorized() {
	if x.api == apiOpenAI {
		x.rejected(http.StatusUnauthorized, openaiError("You didn't provide an API key.", "invalid_request_error", "missing_api_key"))
		return
	}
	x.rejected(http.StatusUnauthorized,
		`{"message":"Requires authentication","documentation_url":"https://docs.github.com/rest","status":"401"}`)
}

// rejected answers and records an invalid request.
func (x *exchange) rejected(status int, body string) {
	x.p.mu.Lock()
	x.recordLocked(x.p.cfg.Now(), "", 0, status, Rejected, time.Time{})
	x.p.mu.Unlock()
	x.answer(status, body)
}

func (x *exchange) answer(status int, body string) {
	// Resets and the Date header both follow the provider's clock.
	x.w.Header().Set("Date", x.p.cfg.Now().UTC().Format(http.TimeFormat))
	x.w.WriteHeader(status)
	if _, err := x.w.Write([]byte(body)); err != nil {
		return // the caller has left
	}
}

// wholeSeconds formats a wait rounded up, since Retry-After has no fractions.
func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
