package signals

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Anthropic is the dialect of Anthropic's API, with a key or with a plan. A plan's traffic has headers of its own: a refusal without them
// is not the plan's.
var Anthropic = Dialect{name: "anthropic", observe: observeAnthropic}

// anthropicFamilies are the limits in the headers, by the part of the header's name that stands for them.
var anthropicFamilies = []struct{ header, resource string }{
	{"Ratelimit-Requests", "requests"},
	{"Ratelimit-Tokens", "tokens"},
	{"Ratelimit-Input-Tokens", "input-tokens"},
	{"Ratelimit-Output-Tokens", "output-tokens"},
	{"Priority-Input-Tokens", "priority-input-tokens"},
	{"Priority-Output-Tokens", "priority-output-tokens"},
	{"Fast-Input-Tokens", "fast-input-tokens"},
	{"Fast-Output-Tokens", "fast-output-tokens"},
}

func observeAnthropic(r *response) []Signal {
	var out []Signal
	for _, family := range anthropicFamilies {
		if s, ok := anthropicCounts(r, "Anthropic-"+family.header+"-", family.resource); ok {
			out = append(out, s)
		}
	}
	windows := anthropicWindows(r)
	out = append(out, windows...)
	if verdict := anthropicVerdict(r, windows); verdict.Class != 0 {
		out = append(out, verdict)
	}
	return out
}

// anthropicCounts reads one family of headers. A reset is the moment at which the limit is full again; one in the past is common and
// means that it is full now. Tokens are rounded to thousands.
func anthropicCounts(r *response, prefix, resource string) (Signal, bool) {
	s := Signal{
		Class:     OK,
		Scope:     ScopeResource,
		Resource:  resource,
		Limit:     r.count(prefix + "Limit"),
		Remaining: r.count(prefix + "Remaining"),
		RefillIn:  r.longest(prefix+"Reset", r.rfc3339),
		Rule:      "anthropic/counts",
	}
	s.Exact = s.Remaining.Known && resource == "requests"
	return s, s.Limit.Known || s.Remaining.Known || s.RefillIn.Known
}

const anthropicPlan = "Anthropic-Ratelimit-Unified-"

// anthropicWindow is the part of a header's name that names one of a plan's windows: 5h, 7d, 7d_opus.
var anthropicWindow = regexp.MustCompile(`^` + anthropicPlan + `(([0-9]{1,3}[hd])[A-Za-z0-9_]{0,24})-(?:Utilization|Reset|Status)$`)

// anthropicWindows reads the windows of a plan, in the order of their names.
func anthropicWindows(r *response) []Signal {
	lengths := map[string]string{}
	for name := range r.header {
		if found := anthropicWindow.FindStringSubmatch(name); found != nil {
			lengths[found[1]] = found[2]
		}
	}
	var out []Signal
	for name, length := range lengths {
		s := Signal{
			Class: OK, Scope: ScopePlan, Resource: strings.ToLower(name), Rule: "anthropic/plan",
			UsedShare: r.share(anthropicPlan+name+"-Utilization", millionth),
			ResetIn:   r.longest(anthropicPlan+name+"-Reset", r.sinceEpoch),
		}
		if d, ok := spoken(length); ok {
			s.Window = Span{D: d, Known: true}
		}
		out = append(out, inWindow(s))
	}
	slices.SortFunc(out, func(a, b Signal) int { return strings.Compare(a.Resource, b.Resource) })
	return out
}

// inWindow sets the resolution of a reset, and drops the usage of a window that has ended.
func inWindow(s Signal) Signal {
	if s.ResetIn.Known {
		s.ResetResolution = time.Second
	}
	if s.ResetIn.Known && s.ResetIn.D == 0 {
		s.Remaining, s.Used, s.UsedShare = Count{}, Count{}, Count{}
	}
	return s
}

// anthropicError is the error object of a body or of a stream's event.
type anthropicError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	Details struct {
		ErrorCode string `json:"error_code"`
	} `json:"details"`
}

var (
	anthropicSpend  = regexp.MustCompile(`(?i)\bspend(?:ing)? limit|\busage limits?\b|\bcredit balance is too low`)
	anthropicFamily = regexp.MustCompile(`\b([0-9][0-9,]*) (input tokens|output tokens|tokens|requests) per minute`)
)

func anthropicVerdict(r *response, windows []Signal) Signal {
	asked := r.retryAfter()
	said, found := anthropicSaid(r)
	if r.status < 400 && !found {
		return Signal{}
	}
	s := Signal{NoRetry: r.noRetry()}
	switch {
	case said.Details.ErrorCode == "enforced_spend_limit_reached":
		// It ends with the calendar month; no retry waits that long.
		s.Class, s.Scope, s.NoRetry, s.Rule = Billing, ScopeOrg, true, "anthropic/spend_limit"
		r.moments = true
		utc := r.now.UTC()
		s.ResetIn = r.left(time.Date(utc.Year(), utc.Month()+1, 1, 0, 0, 0, 0, time.UTC))
		return inWindow(s)
	case r.status == http.StatusBadRequest && anthropicSpend.MatchString(said.Message), said.Type == "billing_error":
		s.Class, s.Scope, s.NoRetry, s.Rule = Billing, ScopeOrg, true, "anthropic/billing"
		return s
	case r.status == 529 || said.Type == "overloaded_error" || r.status == http.StatusServiceUnavailable:
		s.Class, s.Scope, s.Rule = Overloaded, ScopeProvider, "anthropic/overloaded"
		return asked.on(s)
	case r.status == http.StatusTooManyRequests && r.header.Get(anthropicPlan+"Status") == "rejected":
		return anthropicPlanUsedUp(r, s, asked, windows)
	case r.status == http.StatusTooManyRequests || said.Type == "rate_limit_error":
		s.Class, s.Rule = Throttled, "anthropic/rate_limit"
		if found := anthropicFamily.FindStringSubmatch(said.Message); found != nil {
			n, ok := parseCount(found[1])
			s.Scope, s.Resource, s.Limit = ScopeResource, strings.ReplaceAll(found[2], " ", "-"), Count{N: n, Known: ok}
		}
		return asked.or(messageWait(said.Message)).on(s)
	}
	s.Class, s.Rule = NotALimit, "anthropic/error"
	return s
}

// anthropicPlanUsedUp returns the verdict that a plan's window is used up.
func anthropicPlanUsedUp(r *response, s Signal, asked wait, windows []Signal) Signal {
	s.Class, s.Scope, s.Rule = Exhausted, ScopePlan, "anthropic/plan"
	for _, w := range windows {
		rejected := strings.EqualFold(r.header.Get(anthropicPlan+w.Resource+"-Status"), "rejected")
		if rejected || w.UsedShare.N >= int64(millionth) {
			s.Resource, s.Window, s.UsedShare = w.Resource, w.Window, w.UsedShare
		}
	}
	s.ResetIn = r.longest(anthropicPlan+"Reset", r.sinceEpoch)
	s = inWindow(s)
	if s.ResetIn.Known {
		asked = asked.or(waitFor(s.ResetIn.D))
	}
	return asked.on(s)
}

// anthropicSaid finds the error object: a whole error body, or the event of a stream that failed after its status was
// sent.
func anthropicSaid(r *response) (anthropicError, bool) {
	var event struct {
		Type  string          `json:"type"`
		Error *anthropicError `json:"error"`
	}
	if readJSON(r.body, &event) && event.Error != nil {
		return *event.Error, r.status >= 400
	}
	for data := range events(r.body) {
		event.Type, event.Error = "", nil
		if readJSON(data, &event) && event.Type == "error" && event.Error != nil {
			return *event.Error, true
		}
	}
	return anthropicError{}, false
}
