package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
)

// retrySoon is the default Retry-After.
const retrySoon = 5 * time.Second

var (
	errStopping  = errors.New("this gateway is stopping")
	errNotListed = errors.New("the gateway has not read the quotas of the cluster yet")
)

// slotLost is the reason of calls that were granted and sent, and then lost their slot.
const slotLost = "SLOT_LOST"

// refusalOf converts an error of a call to an answer; gone: the client has left.
func (c *call) refusalOf(err error) (refusal dialect.Refusal, gone bool) {
	var no *client.RefusalError
	var wrong *client.RequestError
	var upstream *upstreamError
	var pool *PoolError
	switch {
	case errors.Is(err, errStopping):
		return dialect.Refusal{
			Status: http.StatusServiceUnavailable, Reason: "STOPPING", Message: "quotad: " + errStopping.Error(), RetryAfter: time.Second,
		}, false
	case errors.As(err, &no):
		return c.quotaRefusal(no), false
	case errors.As(err, &wrong):
		return c.wrongRequest(wrong), false
	case errors.As(err, &pool):
		return dialect.Refusal{
			Status: http.StatusForbidden, Reason: "POOL_MISMATCH", Quota: pool.Pool, Final: true,
			Message: "quotad: " + pool.Message + ". " + pool.Hint,
		}, false
	case errors.As(err, &upstream):
		said := "did not answer"
		if !upstream.sent {
			said = "could not be reached; nothing was sent"
		}
		return dialect.Refusal{Status: http.StatusBadGateway, Message: fmt.Sprintf("quotad: the upstream %s %s: %s", c.upstream.name, said,
			withoutQuery(upstream.err))}, false
	case errors.Is(err, context.Canceled):
		return refusal, true
	case errors.Is(err, client.ErrLate):
		return dialect.Refusal{Status: http.StatusServiceUnavailable, RetryAfter: retrySoon, Message: err.Error()}, false
	case hasNoRoom(err):
		reason, _ := errors.AsType[client.Reason](err)
		return dialect.Refusal{
			Status: http.StatusServiceUnavailable, RetryAfter: retrySoon, Reason: reason.String(),
			Message: fmt.Sprintf("quotad: the cluster has no room for this call now (%v); nothing was sent", err),
		}, false
	case errors.Is(err, client.ErrLeaseExpired), errors.Is(err, client.ReasonStaleFence):
		return dialect.Refusal{
			Status: http.StatusServiceUnavailable, RetryAfter: retrySoon, Reason: slotLost,
			Message: "quotad: the slot of this call was lost " +
				"while it ran: the cluster was away for too long, or an operator revoked the lease",
		}, false
	}
	return c.awayRefusal(err), false
}

// withoutQuery returns an error's text without URL queries, which could contain a key.
func withoutQuery(err error) string {
	text := err.Error()
	for {
		at := strings.IndexByte(text, '?')
		if at < 0 {
			return text
		}
		end := strings.IndexAny(text[at:], " \":")
		if end < 0 {
			return text[:at]
		}
		text = text[:at] + text[at+end:]
	}
}

// awayRefusal is the refusal when the cluster did not answer.
func (c *call) awayRefusal(err error) dialect.Refusal {
	nodes := strings.Join(c.gateway.cluster.addresses, ", ")
	why := fmt.Sprintf("quotad: no quotad node answered in time (%s)", nodes)
	if reason, reported := errors.AsType[client.Reason](err); reported {
		why = fmt.Sprintf("quotad: the cluster (%s) did not serve the call: %s", nodes, reason)
	}
	if unreachable, ok := errors.AsType[*client.UnreachableError](err); ok {
		why = unreachable.Error()
	}
	return dialect.Refusal{
		Status: http.StatusServiceUnavailable, RetryAfter: retrySoon, Reason: "CLUSTER_AWAY", Message: why + "; nothing was sent",
	}
}

// wrongRequest is the refusal of requests that the cluster rejects for good.
func (c *call) wrongRequest(err *client.RequestError) dialect.Refusal {
	refusal := dialect.Refusal{
		Status: http.StatusForbidden, Message: "quotad: " + err.Message, Reason: err.Reason.String(),
		Quota: err.Quota, Final: true,
	}
	switch err.Reason {
	case client.ReasonUnknownQuota:
		refusal.Message = fmt.Sprintf("quotad: the cluster has no quota %s. %s", identity.Quote(err.Quota), c.adviseQuota(err.Quota))
	case client.ReasonNotAllowed, client.ReasonNoToken:
		refusal.Message = fmt.Sprintf("quotad: the gateway's own token does not cover the holder %s: quotad token new --holder '*@%s'",
			identity.Quote(c.caller.Holder), c.state.machine)
	default:
		if err.Hint != "" {
			refusal.Message += " (" + err.Hint + ")"
		}
	}
	return refusal
}

// finalAfter is the Retry-After above which a refusal asks clients not to retry.
const finalAfter = time.Minute

// quotaRefusal converts the cluster's refusal to the provider's form.
func (c *call) quotaRefusal(no *client.RefusalError) dialect.Refusal {
	d, _ := c.drawOf(no.Quota)
	part := d.part
	if part == "" {
		part = no.Quota[strings.LastIndexByte(no.Quota, '/')+1:]
	}
	r := dialect.Refusal{
		Status: http.StatusTooManyRequests, Reason: no.Reason.String(), Quota: no.Quota, RetryAfter: no.RetryAfter, Part: part,
		Limit: d.quota.Limit, Daily: d.quota.Daily, Now: time.Now(), Primary: primary(part), Forecast: predicted(no.Forecast),
		Budget: part == partCost && no.RetryAfter > finalAfter,
	}
	claude := identity.ToolOf(c.header) == "claude"
	switch no.Reason {
	case client.ReasonNeverFits, client.ReasonAboveClamp, client.ReasonSuspended:
		r.Final = true
	default:
		r.Final = r.Budget || no.RetryAfter < 0 || no.RetryAfter > finalAfter && !claude
	}
	r.Message = c.says(no, r)
	return r
}

// primary reports whether a part is one of GitHub's primary limits.
func primary(part string) bool {
	return part == "core" || part == "search" || part == "code_search" || part == "graphql"
}

// says returns the message of a refusal, in the provider's style.
func (c *call) says(no *client.RefusalError, r dialect.Refusal) string {
	who := "quotad, holder " + c.caller.Holder
	until := ""
	if r.Budget {
		until = " until " + r.Now.Add(no.RetryAfter).UTC().Format("2006-01-02 15:04") + " UTC"
	}
	said := fmt.Sprintf("%s is %s%s (%s).", no.Quota, no.Reason, until, who)
	advice := ""
	if no.Advice != "" {
		advice = " " + no.Advice
	}
	switch c.op.Dialect {
	case dialect.OpenAI, dialect.Azure, dialect.Codex:
		if !r.Budget {
			return "Rate limit reached for " + c.target.Model + ": " + said
		}
	case dialect.Anthropic:
		if r.Budget {
			return "spend limit reached (resets " + r.Now.Add(no.RetryAfter).UTC().Format("2006-01-02 15:04") + " UTC)"
		}
	case dialect.GitHub:
		return fmt.Sprintf("quotad: %s %s, holder %s", no.Quota, no.Reason, c.caller.Holder)
	case dialect.Bedrock:
		return "quotad: " + no.Quota + " is " + no.Reason.String() + ", holder " + c.caller.Holder
	case dialect.Gemini, dialect.Generic:
	}
	return said + advice
}

// reasonOf returns the reason of a refusal without one: its status, in the form of the cluster's reasons. A provider that did not
// answer has refused nothing.
func reasonOf(status int) string {
	if status == http.StatusBadGateway {
		return ""
	}
	return strings.ToUpper(strings.ReplaceAll(http.StatusText(status), " ", "_"))
}

// refuse writes an answer of the gateway itself and counts it.
func (c *call) refuse(w http.ResponseWriter, r dialect.Refusal) {
	if r.Status == statusGone {
		c.record(func(o *outcome) { o.code, o.end = statusGone, endGone })
		return
	}
	switch {
	case c.incoming != nil && !c.incoming.ended.Load():
		// The server would read the rest of the body before it answers, for as long as the client is silent.
		w.Header().Set("Connection", "close")
	case c.gateway.stopping.Load():
		w.Header().Set("Connection", "close") // the next one may reach another gateway
	}
	r.RequestID = c.id
	said := c.op.Dialect
	if said == "" {
		said = dialect.Generic
	}
	if r.Status == http.StatusBadGateway {
		w.Header().Set("X-Quotad", "upstream")
	}
	writeAnswer(w, said.Refuse(r))
	if r.Reason = cmp.Or(r.Reason, reasonOf(r.Status)); r.Reason != "" {
		name := ""
		if c.upstream != nil {
			name = c.upstream.name
		}
		c.gateway.metrics.refused.WithLabelValues(name, c.caller.Class.String(), r.Reason).Inc()
	}
	c.record(func(o *outcome) {
		o.code, o.end, o.refusal = r.Status, "refused", r.Reason
	})
	c.gateway.refusals.note(c, r)
}

func writeAnswer(w http.ResponseWriter, a dialect.Answer) {
	maps.Copy(w.Header(), a.Header)
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body)
}

// keptRefusals is how many refusals the status page shows.
const keptRefusals = 50

// PastRefusal is one refusal, for the status page.
type PastRefusal struct {
	At       time.Time `json:"at"`
	Upstream string    `json:"upstream,omitempty"`
	Holder   string    `json:"holder,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Quota    string    `json:"quota,omitempty"`
	Status   int       `json:"status"`
	Message  string    `json:"message"`
}

// refusals records the last refusals, and which of them were logged recently.
type refusals struct {
	mu   sync.Mutex
	last []PastRefusal
	// warned is when a quota and reason were last logged, and how many refusals followed.
	warned map[[2]string]*warning
}

type warning struct {
	at    time.Time
	count int
}

// note records a refusal, and logs it at most once a minute for each quota and reason.
func (r *refusals) note(c *call, refusal dialect.Refusal) {
	now := time.Now()
	past := PastRefusal{
		At: now, Holder: c.caller.Holder, Reason: refusal.Reason, Quota: refusal.Quota, Status: refusal.Status,
		Message: refusal.Message,
	}
	if c.upstream != nil {
		past.Upstream = c.upstream.name
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = append(r.last, past)
	if len(r.last) > keptRefusals {
		r.last = append(r.last[:0], r.last[1:]...)
	}
	key := [2]string{refusal.Quota, refusal.Reason}
	if r.warned == nil || len(r.warned) > 10_000 {
		r.warned = map[[2]string]*warning{}
	}
	w := r.warned[key]
	if w == nil {
		w = &warning{}
		r.warned[key] = w
	}
	w.count++
	if now.Sub(w.at) < time.Minute {
		return
	}
	c.gateway.logger.Warn("refused", "upstream", past.Upstream, "quota", refusal.Quota, "reason", refusal.Reason, "code", refusal.Status,
		"count", w.count, "message", refusal.Message)
	w.at, w.count = now, 0
}

// list returns the last refusals, newest first.
func (r *refusals) list() []PastRefusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]PastRefusal, 0, len(r.last))
	for _, past := range slices.Backward(r.last) {
		out = append(out, past)
	}
	return out
}
