package client

import (
	"net/http"
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
// governed.
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
