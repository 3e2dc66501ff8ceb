package client

import (
	"encoding/json"
	"io"
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
	// UsageQuota is the quota among Items that is settled by the total_tokens which the response's body names; empty:
	// none is.
	UsageQuota string
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

// OpenAI governs calls of OpenAI's API: each is one unit of openai/<model>/requests and an estimate of
// openai/<model>/tokens, which is settled by the usage that the response names. The estimate is a quarter of the body's
// bytes and the most tokens that the call may produce; without such a bound it is the quota's default estimate. Requests
// without a body, such as listing models, are not governed; one whose model cannot be read counts as openai/requests.
func OpenAI() TransportOption {
	return func(s *transportSettings) { s.dialect, s.match = signals.OpenAI, matchOpenAI }
}

func matchOpenAI(request *http.Request) Call {
	if request.Body == nil || request.Body == http.NoBody {
		return Call{}
	}
	asked := readOpenAI(request)
	if asked.model == "" {
		return Call{Items: []Item{{Quota: "openai/requests", Amount: 1}}}
	}
	tokens := Item{Quota: "openai/" + asked.model + "/tokens"}
	if asked.most > 0 && request.ContentLength >= 0 {
		tokens.Amount = min(request.ContentLength/4+asked.most*max(asked.choices, 1), maxAmount)
	}
	return Call{Items: []Item{{Quota: "openai/" + asked.model + "/requests", Amount: 1}, tokens}, UsageQuota: tokens.Quota}
}

// maxBodyRead is how much of a request's body is read to find its model, in bytes.
const maxBodyRead = 1 << 20

// openAIAsk is what a request's body asks for.
type openAIAsk struct {
	model         string
	most, choices int64
}

// readOpenAI reads a copy of the request's body as far as it has to. What it cannot read is left empty.
func readOpenAI(request *http.Request) (asked openAIAsk) {
	if request.GetBody == nil {
		return asked
	}
	body, err := request.GetBody()
	if err != nil {
		return asked
	}
	defer func() { _ = body.Close() }()
	in := json.NewDecoder(io.LimitReader(body, maxBodyRead))
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return asked
	}
	for in.More() {
		key, err := in.Token()
		if err != nil {
			return asked
		}
		var value json.RawMessage
		if in.Decode(&value) != nil {
			return asked
		}
		switch key {
		case "model":
			_ = json.Unmarshal(value, &asked.model)
		case "max_tokens", "max_completion_tokens", "max_output_tokens":
			asked.most = max(asked.most, boundedCount(value))
		case "n":
			asked.choices = boundedCount(value)
		}
	}
	return asked
}

// boundedCount reads a count that no sensible request exceeds, so that products of two do not overflow.
func boundedCount(value json.RawMessage) int64 {
	var n int64
	if json.Unmarshal(value, &n) != nil {
		return 0
	}
	return min(max(n, 0), 1<<24)
}
