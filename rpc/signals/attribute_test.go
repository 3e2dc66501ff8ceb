package signals_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/quotad/quotad/rpc/signals"
)

func TestAttribute(t *testing.T) {
	count := func(n int64) signals.Count { return signals.Count{N: n, Known: true} }
	left := func(resource string, n int64) signals.Signal {
		return signals.Signal{Class: signals.OK, Resource: resource, Remaining: count(n)}
	}
	wait := signals.Span{D: time.Minute, Known: true}
	for name, c := range map[string]struct {
		said   []signals.Signal
		quotas []string
		want   []string
	}{
		"by the end of the name": {
			said: []signals.Signal{left("tokens", 5), left("requests", 7)}, quotas: []string{"o/m/requests", "o/m/tokens"},
			want: []string{"o/m/tokens ok 5", "o/m/requests ok 7"},
		},
		"a part of a name is no end of it": {said: []signals.Signal{left("ore", 5)}, quotas: []string{"github/core"}},
		"another limit":                    {said: []signals.Signal{left("search", 5)}, quotas: []string{"github/core"}},
		"no name, one quota":               {said: []signals.Signal{left("", 5)}, quotas: []string{"q"}, want: []string{"q ok 5"}},
		"no name, two quotas":              {said: []signals.Signal{left("", 5)}, quotas: []string{"q", "r"}},
		"a refusal without a name joins the counts of the first": {
			said:   []signals.Signal{left("core", 0), {Class: signals.Throttled, RetryAfter: wait}},
			quotas: []string{"github/core", "github/points"}, want: []string{"github/core throttled 0 in 1m0s"},
		},
		"a refusal by name": {
			said:   []signals.Signal{{Class: signals.Exhausted, Resource: "tokens", RetryAfter: wait}},
			quotas: []string{"o/requests", "o/tokens"}, want: []string{"o/tokens exhausted in 1m0s"},
		},
		"not paid": {
			said:   []signals.Signal{left("requests", 9), {Class: signals.Billing, RetryAfter: wait}},
			quotas: []string{"o/requests", "o/tokens"}, want: []string{"o/requests billing 9", "o/tokens billing"},
		},
		"not a limit": {said: []signals.Signal{{Class: signals.NotALimit}}, quotas: []string{"q"}},
		"no quotas":   {said: []signals.Signal{{Class: signals.Throttled}}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, of := range signals.Attribute(c.said, c.quotas) {
				text := of.Quota + " " + of.Class.String()
				if of.Remaining.Known {
					text += fmt.Sprintf(" %d", of.Remaining.N)
				}
				if of.RetryAfter.Known {
					text += fmt.Sprintf(" in %v", of.RetryAfter.D)
				}
				got = append(got, text)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestAttribute_Answer: a real refusal, read from its headers on.
func TestAttribute_Answer(t *testing.T) {
	header := http.Header{
		"Date":                  {"Mon, 02 Jan 2006 15:04:05 GMT"},
		"X-Ratelimit-Limit":     {"5000"},
		"X-Ratelimit-Remaining": {"0"},
		"X-Ratelimit-Reset":     {"1136214305"}, // a minute after Date
		"X-Ratelimit-Resource":  {"core"},
	}
	said := signals.Auto.ObserveAnswer(time.Time{}, http.StatusForbidden, header, []byte(`{"message":"API rate limit exceeded"}`))
	of := signals.Attribute(said, []string{"github/points", "github/core"})
	if len(of) != 1 || of[0].Quota != "github/core" || of[0].Class != signals.Exhausted || of[0].ResetIn.D != time.Minute {
		t.Errorf("%+v", of)
	}
}
