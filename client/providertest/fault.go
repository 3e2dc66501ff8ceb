package providertest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxBody is the longest request body that is read, in bytes.
const maxBody = 8 << 20

// Fault is something that the provider does wrong on purpose. A request meets at most one: the first that fits and is
// not used up. A fault with a Status or Close answers in place of the limits and charges nothing.
type Fault struct {
	// Key, Holder and Path choose the requests, Path by its beginning; empty: any.
	Key    string `json:"key,omitempty"`
	Holder string `json:"holder,omitempty"`
	Path   string `json:"path,omitempty"`
	// Times is how many requests meet it; 0: 1.
	Times int `json:"times,omitempty"`
	// Status is answered: 429, 403, 500 and so on.
	Status int `json:"status,omitempty"`
	// RetryAfter is answered along with it; 0: none.
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
	// Body is answered along with it.
	Body string `json:"body,omitempty"`
	// Close closes the connection after the request was read, without an answer.
	Close bool `json:"close,omitempty"`
	// Delay holds the request first; with neither Status nor Close, the limits judge it afterwards.
	Delay time.Duration `json:"delay,omitempty"`
}

func (f Fault) fits(x *exchange) bool {
	return (f.Key == "" || f.Key == x.key) && (f.Holder == "" || f.Holder == x.r.Header.Get(HolderHeader)) &&
		strings.HasPrefix(x.r.URL.Path, f.Path)
}

// Inject adds a fault behind those that are there.
func (p *Provider) Inject(f Fault) {
	f.Times = max(f.Times, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
}

// takeFault returns the fault that the request meets, if any.
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

// fail answers as the fault says.
func (x *exchange) fail(f Fault) {
	status := f.Status
	if f.Close {
		status = 0
	}
	x.p.mu.Lock()
	x.recordLocked(x.p.cfg.Now(), "", 0, status, Injected, time.Time{})
	x.p.mu.Unlock()
	if f.Close {
		// The server closes the connection and logs nothing: what net/http offers for this.
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
	x.rejected(http.StatusUnauthorized, `{"message":"Requires authentication","documentation_url":"https://docs.github.com/rest","status":"401"}`)
}

// rejected answers a request that is wrong, and records it.
func (x *exchange) rejected(status int, body string) {
	x.p.mu.Lock()
	x.recordLocked(x.p.cfg.Now(), "", 0, status, Rejected, time.Time{})
	x.p.mu.Unlock()
	x.answer(status, body)
}

func (x *exchange) answer(status int, body string) {
	// Resets are moments of the provider's clock, and so is its Date.
	x.w.Header().Set("Date", x.p.cfg.Now().UTC().Format(http.TimeFormat))
	x.w.WriteHeader(status)
	if _, err := x.w.Write([]byte(body)); err != nil {
		return // the caller has left
	}
}

// wholeSeconds rounds a wait up, as Retry-After has no fractions.
func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
