package providertest

import (
	"cmp"
	"net/http"
	"time"
)

// Headers of a request that go into its Record.
const (
	// HolderHeader names the caller.
	HolderHeader = "X-Holder"
	// CallHeader names the call: the same for each attempt of it.
	CallHeader = "X-Call-Id"
)

// Unlimited as a limit stands for none.
const Unlimited = -1

// Config configures a Provider. The zero Config has the limits of an ordinary GitHub user and of a small OpenAI
// organisation, in real time.
type Config struct {
	// Scale is how many times faster than life the hours and minutes of the limits pass. 0: 1.
	Scale int
	// GitHub has GitHub's limits.
	GitHub GitHub
	// OpenAI has OpenAI's limits.
	OpenAI OpenAI
	// Now is the clock. Absent: time.Now. Latencies are always real.
	Now func() time.Time
	// Seed is where the jitter of latencies comes from.
	Seed uint64
	// MaxRecords is how many requests are recorded in detail; later ones are only counted. 0: 1,000,000.
	MaxRecords int
}

// GitHub configures GitHub's limits, for each key. A limit of 0 is GitHub's own, [Unlimited] is none.
type GitHub struct {
	// Core is how many REST requests an hour may have. 0: 5,000.
	Core int64
	// GraphQL is how many GraphQL points an hour may have. 0: 5,000.
	GraphQL int64
	// Search is how many searches a minute may have. 0: 30.
	Search int64
	// CodeSearch is how many code searches a minute may have. 0: 10.
	CodeSearch int64
	// Concurrent is how many requests may be served at once, REST and GraphQL together. 0: 100.
	Concurrent int64
	// Points is how many points of REST requests a minute may have; reading costs 1, writing 5. 0: 900.
	Points int64
	// GraphQLPoints is how many points of GraphQL requests a minute may have; a query costs 1, a mutation 5. 0: 2,000.
	GraphQLPoints int64
	// Content is how many requests that create content a minute may have. 0: 80.
	Content int64
	// ContentHour is how many requests that create content an hour may have. 0: 500.
	ContentHour int64
	// Status is that of a refusal by a primary limit: 403 or 429. 0: 403.
	Status int
	// SecondaryStatus is that of a refusal by a secondary limit: 403 or 429. 0: 403.
	SecondaryStatus int
	// OmitRetryAfter leaves the Retry-After of secondary limits out, as GitHub sometimes does.
	OmitRetryAfter bool
	// Latency is how long an admitted request is served, give or take a half of it.
	Latency time.Duration
}

// Algorithm is the way in which a limit per period is counted.
type Algorithm int

const (
	// Sliding counts what arrived within the last period, wherever it began: the strictest reading of a limit.
	Sliding Algorithm = 0
	// Bucket is a token bucket that holds one period's worth and refills evenly.
	Bucket Algorithm = 1
)

// OpenAI configures OpenAI's limits, for each key and model.
type OpenAI struct {
	// Requests is how many requests a period may have. 0: 500. [Unlimited]: any.
	Requests int64
	// Tokens is how many tokens a period may have. 0: 200,000. [Unlimited]: any.
	Tokens int64
	// Per is the period, before scaling. 0: 1 min.
	Per time.Duration
	// Algorithm is how both are counted.
	Algorithm Algorithm
	// RefusedFree: a refused request does not count against Requests. At OpenAI it does.
	RefusedFree bool
	// Latency is how long an admitted request is served, give or take a half of it.
	Latency time.Duration
}

// withDefaults returns the configuration with every absent value filled in.
func (c Config) withDefaults() Config {
	c.Scale = cmp.Or(c.Scale, 1)
	c.MaxRecords = cmp.Or(c.MaxRecords, 1_000_000)
	if c.Now == nil {
		c.Now = time.Now
	}
	g := &c.GitHub
	g.Core = cmp.Or(g.Core, 5_000)
	g.GraphQL = cmp.Or(g.GraphQL, 5_000)
	g.Search = cmp.Or(g.Search, 30)
	g.CodeSearch = cmp.Or(g.CodeSearch, 10)
	g.Concurrent = cmp.Or(g.Concurrent, 100)
	g.Points = cmp.Or(g.Points, 900)
	g.GraphQLPoints = cmp.Or(g.GraphQLPoints, 2_000)
	g.Content = cmp.Or(g.Content, 80)
	g.ContentHour = cmp.Or(g.ContentHour, 500)
	g.Status = cmp.Or(g.Status, http.StatusForbidden)
	g.SecondaryStatus = cmp.Or(g.SecondaryStatus, http.StatusForbidden)
	o := &c.OpenAI
	o.Requests = cmp.Or(o.Requests, 500)
	o.Tokens = cmp.Or(o.Tokens, 200_000)
	o.Per = cmp.Or(o.Per, time.Minute)
	return c
}

// scaled returns a time of the limits as the caller sees it.
func (c Config) scaled(d time.Duration) time.Duration { return d / time.Duration(c.Scale) }
