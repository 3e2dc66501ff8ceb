package client

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/quotad/quotad/client/signals"
)

// Call says what one HTTP request draws on.
type Call struct {
	// Items are the quotas and estimates of one attempt; an amount of 0 is the quota's default estimate. No items: the
	// request is not governed.
	Items []Item
	// Class lowers the class of this request; 0: the client's.
	Class Class
	// Resources maps the provider's names of limits to the quotas among Items that they speak of. What is not in it
	// belongs to the item whose name ends with it: core to github/core.
	Resources map[string]string
	// Usage maps fields of the response's body that say what was used, such as total_tokens, to the quotas among Items
	// that are settled by them. The last value of a field counts; fields of the same quota are added up.
	Usage map[string]string
	// UsageAtEnd: the fields also stand in the middle of the body, with less. They are believed only of a body that was
	// read to its end.
	UsageAtEnd bool
}

// quota returns the item that the provider's name of a limit belongs to; empty: none.
func (c Call) quota(resource string) string {
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

// GitHub governs calls of GitHub's API: each is one unit of github/core, github/search, github/code_search or
// github/graphql, by its path. The cluster needs to have those quotas. Reading /rate_limit costs nothing and is not
// governed. GitHub's secondary limits are not drawn on: see GitHubSecondary.
func GitHub() TransportOption {
	return func(s *transportSettings) { s.dialect, s.match = signals.GitHub, matchGitHub }
}

func matchGitHub(request *http.Request) Call {
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
	return Call{Items: []Item{{Quota: "github/" + resource, Amount: 1}}}
}

// GitHubSecondary governs calls of GitHub's API as GitHub does, and by its secondary limits as well, of which it does not say
// how much is left. A call also holds one of github/concurrent until its body is read or closed. It draws on github/points, 1
// for GET, HEAD and OPTIONS and 5 for all else, or if it is one of GraphQL on github/graphql-points, 1 for a query and 5 for a
// mutation. All that writes and is no DELETE counts as created content: one unit of github/content. What cannot be read, such as
// a body without GetBody, is taken for a mutation. The cluster needs to have all quotas of the preset github.
//
// The figures are those of docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api and
// docs.github.com/graphql/overview, 2026-11-20.
func GitHubSecondary() TransportOption {
	return func(s *transportSettings) { s.dialect, s.match = signals.GitHub, matchGitHubSecondary }
}

func matchGitHubSecondary(request *http.Request) Call {
	call := matchGitHub(request)
	if len(call.Items) == 0 {
		return call
	}
	primary := call.Items[0].Quota
	points, writes := Item{Quota: "github/points", Amount: 1}, !reads(request.Method)
	if primary == "github/graphql" {
		points.Quota, writes = "github/graphql-points", mutates(request)
	}
	if writes {
		points.Amount = 5
	}
	call.Items = append(call.Items, Item{Quota: "github/concurrent", Amount: 1}, points)
	if writes && request.Method != http.MethodDelete {
		call.Items = append(call.Items, Item{Quota: "github/content", Amount: 1})
	}
	// Counts that name no limit are those of the primary one.
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

// mutates tells whether a request of GraphQL may change anything.
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
	err = json.NewDecoder(io.LimitReader(body, maxBodyRead)).Decode(&asked)
	return err != nil || asked.Query == "" || mutation.MatchString(asked.Query)
}
