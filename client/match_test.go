package client

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/quotad/quotad/rpc/signals"
)

// The quotas that a call draws on for GitHub's secondary limits, in addition to its primary one.
func TestMatchGitHubSecondary(t *testing.T) {
	post := func(method, path, body string) *http.Request {
		r := httptest.NewRequest(method, "https://host.example"+path, strings.NewReader(body))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
		return r
	}
	get := func(method, path string) *http.Request {
		return httptest.NewRequest(method, "https://host.example"+path, http.NoBody)
	}
	core, search := Item{"github/core", 1}, Item{"github/search", 1}
	graphql, slot, content := Item{"github/graphql", 1}, Item{"github/concurrent", 1}, Item{"github/content", 1}
	rest := func(n int64) Item { return Item{"github/points", n} }
	graph := func(n int64) Item { return Item{"github/graphql-points", n} }
	broken := post(http.MethodPost, "/graphql", "")
	broken.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
	once := post(http.MethodPost, "/graphql", `{"query":"{viewer{login}}"}`)
	once.GetBody = nil
	var settings transportSettings
	GitHubSecondary()(&settings)
	governs := settings.providers[0]
	for _, c := range []struct {
		name    string
		request *http.Request
		want    []Item
	}{
		{"reads", get(http.MethodGet, "/repos/o/r"), []Item{core, slot, rest(1)}},
		{"asks whether", get(http.MethodHead, "/repos/o/r"), []Item{core, slot, rest(1)}},
		{"searches", get(http.MethodGet, "/search/issues"), []Item{search, slot, rest(1)}},
		{"creates", post(http.MethodPost, "/repos/o/r/issues", "{}"), []Item{core, slot, rest(5), content}},
		{"changes", post(http.MethodPatch, "/repos/o/r/issues/1", "{}"), []Item{core, slot, rest(5), content}},
		{"deletes", get(http.MethodDelete, "/repos/o/r"), []Item{core, slot, rest(5)}},
		{"at an Enterprise server", get(http.MethodGet, "/api/v3/repos/o/r"), []Item{core, slot, rest(1)}},
		{"queries", post(http.MethodPost, "/graphql", `{"query":"query { viewer { login } }"}`), []Item{graphql, slot, graph(1)}},
		{
			"mutates", post(http.MethodPost, "/graphql", `{"query":"fragment f on X { y }\nmutation M { x }"}`),
			[]Item{graphql, slot, graph(5), content},
		},
		{"a query by its id", post(http.MethodPost, "/graphql", `{"id":"7"}`), []Item{graphql, slot, graph(5), content}},
		{"no JSON", post(http.MethodPost, "/graphql", `mutation`), []Item{graphql, slot, graph(5), content}},
		{"a body that is gone", broken, []Item{graphql, slot, graph(5), content}},
		{"a body that can be read once", once, []Item{graphql, slot, graph(5), content}},
		{"asks for its limits", get(http.MethodGet, "/rate_limit"), nil},
	} {
		call := governs.call(c.request)
		if !slices.Equal(call.Items, c.want) {
			t.Errorf("%s: %v, want %v", c.name, call.Items, c.want)
		}
		if got := MatchGitHubSecondary(c.request).Items; !slices.Equal(got, c.want) {
			t.Errorf("%s: for a matcher of one's own %v, want %v", c.name, got, c.want)
		}
		if call.Dialect.Name() != signals.GitHub.Name() {
			t.Errorf("%s: the answer is read as one of %q", c.name, call.Dialect.Name())
		}
		if len(c.want) > 0 && (call.quota("") != c.want[0].Quota || call.quota("core") == "github/concurrent") {
			t.Errorf("%s: counts without a name are those of %q", c.name, call.quota(""))
		}
	}
}
