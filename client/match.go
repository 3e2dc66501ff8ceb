package client

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/rpc/signals"
)

// Call is what one HTTP request draws on.
type Call struct {
	// Items are the quotas and estimates of one attempt; an amount of 0 is the quota's default estimate. No items: the
	// request is not governed.
	Items []Item
	// Class lowers the class of this request; 0: the client's.
	Class Class
	// Holder is the holder to ask for; empty: the client's.
	Holder string
	// Emergency marks a critical call that may use the last of a window with strict zones. Fallback allows the next quotas of the
	// fallback chains: see Granted.
	Emergency, Fallback bool
	// Dialect is the dialect of the answer; the zero Dialect: the one of the Transport's options.
	Dialect signals.Dialect
	// Resources maps the provider's names of limits to quotas among Items. A name that is missing belongs to the item whose name ends
	// with it: core to github/core.
	Resources map[string]string
	// Usage maps fields of the response's body that state the use, such as total_tokens, to the quotas among Items that they settle.
	// The last value of a field counts; fields of the same quota are added up. It is for unknown providers: calls to models have Parts.
	Usage map[string]string
	// UsageAtEnd: the fields also occur in the middle of the body, with lower values. They count only if the body was read to its end.
	UsageAtEnd bool
	// Parts says which quotas among Items count which tokens of a model. The estimate follows from the request and from earlier calls
	// of the same Prefix, Model and holder; the settlement follows from the answer.
	Parts map[string]Part
	// Prefix begins the quotas' names, Model is the model in those names, Request is the content of the call; nil: it is no call to a
	// model.
	Prefix, Model string
	Request       *estimate.Request
}

// Part is which of a call's tokens a quota counts.
type Part int

// The parts.
const (
	// PartTokens is the input plus the most output that the call may produce, as OpenAI and Bedrock count on arrival. It is settled by
	// the actual use.
	PartTokens Part = 1
	// PartCharged is PartTokens for a provider that returns nothing, such as Azure: it is settled only if more was used.
	PartCharged Part = 2
	// PartInput is the input.
	PartInput Part = 3
	// PartUncached is the input except tokens read from a cache.
	PartUncached Part = 4
	// PartOutput is the likely output, as Anthropic counts it during production. max_tokens bounds it and does not count itself.
	PartOutput Part = 5
	// PartTokensUncached is PartTokens, settled without tokens read from a cache, as Bedrock counts, and with the output multiplied by
	// estimate.Request.Burndown.
	PartTokensUncached Part = 6
)

// amount returns the estimated amount of a part.
func (p Part) amount(a estimate.Amounts) int64 {
	switch p {
	case PartTokens, PartTokensUncached, PartCharged:
		return a.AtArrival()
	case PartOutput:
		return a.Likely
	case PartInput, PartUncached:
	}
	return a.Input
}

// appraise sets the amounts of the items that count tokens.
func (c *Call) appraise(a estimate.Amounts) {
	for i, item := range c.Items {
		if part, ok := c.Parts[item.Quota]; ok {
			c.Items[i].Amount = max(part.amount(a), 1)
		}
	}
}

// quota returns the item that the provider's name of a limit refers to; empty: none.
func (c *Call) quota(resource string) string {
	if name, ok := c.Resources[resource]; ok {
		return name
	}
	for _, item := range c.Items {
		if resource != "" && (item.Quota == resource || strings.HasSuffix(item.Quota, "/"+resource)) {
			return item.Quota
		}
	}
	return ""
}

// holder returns the holder of the call.
func (c *Call) holder(of *Client) string { return cmp.Or(c.Holder, of.holder) }

// GitHub governs calls of GitHub's API. Each is one unit of github/core, github/search, github/code_search or github/graphql, by its
// path. The cluster needs those quotas. Reading /rate_limit is free and not governed. For GitHub's secondary limits see
// GitHubSecondary. For an Enterprise server set its hosts: see Hosts.
func GitHub(options ...ProviderOption) TransportOption { return govern(&github, options) }

// MatchGitHub returns what a call of GitHub's API draws on, for use in a custom matcher.
func MatchGitHub(request *http.Request, options ...ProviderOption) Call {
	return github.with(options).call(request)
}

var github = upstream{
	name: "github", hosts: []string{"api.github.com", "uploads.github.com"}, dialect: signals.GitHub, match: matchGitHub,
}

func matchGitHub(p *upstream, request *http.Request) Call {
	// An Enterprise server has its API under a prefix.
	path := strings.TrimPrefix(strings.TrimPrefix(request.URL.Path, "/api/v3"), "/api")
	resource := "core"
	switch {
	case path == "/rate_limit":
		return Call{}
	case path == "/graphql":
		resource = "graphql"
	case strings.HasPrefix(path, "/search/code"):
		resource = "code_search"
	case strings.HasPrefix(path, "/search/"):
		resource = "search"
	}
	return Call{Items: []Item{{Quota: p.prefix + "/" + resource, Amount: 1}}}
}

// GitHubSecondary governs calls like GitHub, and also by the secondary limits, whose remaining amounts GitHub does not report. A call
// also holds one of github/concurrent until its body is read or closed. A REST call draws on github/points: 1 for GET, HEAD and
// OPTIONS, 5 for other methods. A GraphQL call draws on github/graphql-points: 1 for a query, 5 for a mutation. Every write except
// DELETE counts as created content: one unit of github/content. A call that cannot be read, such as a body without GetBody, counts as a
// mutation. The cluster needs all quotas of the preset github.
//
// The figures are those of docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api and docs.github.com/graphql/overview,
// 2026-11-20.
func GitHubSecondary(options ...ProviderOption) TransportOption {
	return govern(&githubSecondary, options)
}

// MatchGitHubSecondary returns what a call of GitHub's API draws on, secondary limits included, for use in a custom matcher.
func MatchGitHubSecondary(request *http.Request, options ...ProviderOption) Call {
	return githubSecondary.with(options).call(request)
}

var githubSecondary = upstream{name: github.name, hosts: github.hosts, dialect: github.dialect, match: matchGitHubSecondary}

func matchGitHubSecondary(p *upstream, request *http.Request) Call {
	call := matchGitHub(p, request)
	if len(call.Items) == 0 {
		return call
	}
	primary := call.Items[0].Quota
	points, writes := Item{Quota: p.prefix + "/points", Amount: 1}, !reads(request.Method)
	if primary == p.prefix+"/graphql" {
		points.Quota, writes = p.prefix+"/graphql-points", mutates(request)
	}
	if writes {
		points.Amount = 5
	}
	call.Items = append(call.Items, Item{Quota: p.prefix + "/concurrent", Amount: 1}, points)
	if writes && request.Method != http.MethodDelete {
		call.Items = append(call.Items, Item{Quota: p.prefix + "/content", Amount: 1})
	}
	// Counts without a limit's name are those of the primary limit.
	call.Resources = map[string]string{"": primary}
	return call
}

func reads(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	}
	return false
}

var mutation = regexp.MustCompile(`\bmutation\b`)

// maxQueryRead is how much of a request's body to read for its query, in bytes.
const maxQueryRead = 1 << 20

// mutates reports whether a GraphQL request may change anything.
func mutates(request *http.Request) bool {
	if request.Body == nil || request.Body == http.NoBody {
		return mutation.MatchString(request.URL.Query().Get("query"))
	}
	if request.GetBody == nil {
		return true
	}
	body, err := request.GetBody()
	if err != nil {
		return true
	}
	defer func() { _ = body.Close() }()
	var asked struct {
		Query string `json:"query"`
	}
	err = json.NewDecoder(io.LimitReader(body, maxQueryRead)).Decode(&asked)
	return err != nil || asked.Query == "" || mutation.MatchString(asked.Query)
}
