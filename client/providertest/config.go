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
	// CallHeader names the call: the same for each of its attempts.
	CallHeader = "X-Call-Id"
)

// Unlimited means no limit.
const Unlimited = -1

// Config configures a Provider. The zero Config has the limits of an ordinary GitHub user and of a small OpenAI organisation, in real
// time.
type Config struct {
	// Scale is how many times faster than real time the hours and minutes of the limits pass. 0: 1.
	Scale int
	// GitHub has GitHub's limits.
	GitHub GitHub
	// OpenAI has OpenAI's limits.
	OpenAI OpenAI
	// Now is the clock. nil: time.Now. Latencies are always in real time.
	Now func() time.Time
	// Seed seeds the jitter of latencies.
	Seed uint64
	// MaxRecords bounds the requests that are recorded in detail; later ones are only counted. 0: 1,000,000.
	MaxRecords int
}

// GitHub configures GitHub's limits, for each key. A limit of 0 is GitHub's own, [Unlimited] is none.
type GitHub struct {
	// Core limits REST requests per hour. 0: 5,000.
	Core int64
	// GraphQL limits GraphQL points per hour. 0: 5,000.
	GraphQL int64
	// Search limits searches per minute. 0: 30.
	Search int64
	// CodeSearch limits code searches per minute. 0: 10.
	CodeSearch int64
	// Concurrent limits concurrent requests, REST and GraphQL together. 0: 100.
	Concurrent int64
	// Points limits points of REST requests per minute; reading costs 1, writing 5. 0: 900.
	Points int64
	// GraphQLPoints limits points of GraphQL requests per minute; a query costs 1, a mutation 5. 0: 2,000.
	GraphQLPoints int64
	// Content limits requests that create content, per minute. 0: 80.
	Content int64
	// ContentHour limits requests that create content, per hour. 0: 500.
	ContentHour int64
	// Status is the status of a refusal by a primary limit: 403 or 429. 0: 403.
	Status int
	// SecondaryStatus is the status of a refusal by a secondary limit: 403 or 429. 0: 403.
	SecondaryStatus int
	// OmitRetryAfter omits the Retry-After of secondary limits, as GitHub sometimes does.
	OmitRetryAfter bool
	// Latency is the mean service time of an admitted request, with a jitter of ±50 %.
	Latency time.Duration
}

// Algorithm is how a limit per period counts.
type Algorithm int

const (
	// Sliding counts all requests of the last period, wherever it begins: the strictest reading of a limit.
	Sliding Algorithm = 0
	// Bucket is a token bucket with the capacity of one period, which refills evenly.
	Bucket Algorithm = 1
)

// OpenAI configures OpenAI's limits, for each key and model.
type OpenAI struct {
	// Requests limits requests per period. 0: 500. [Unlimited]: no limit.
	Requests int64
	// Tokens limits tokens per period. 0: 200,000. [Unlimited]: no limit.
	Tokens int64
	// Per is the period, before scaling. 0: 1 min.
	Per time.Duration
	// Algorithm is how both limits count.
	Algorithm Algorithm
	// RefusedFree: a refused request does not count against Requests. At OpenAI it does.
	RefusedFree bool
	// Latency is the mean service time of an admitted request, with a jitter of ±50 %.
	Latency time.Duration
}

// withDefaults returns the configuration with defaults filled in.
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

// scaled returns a duration of the limits in real time.
func (c Config) scaled(d time.Duration) time.Duration { return d / time.Duration(c.Scale) }
