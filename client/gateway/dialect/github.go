package dialect

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// Draw is an amount of a limit, by the limit's name below the upstream's prefix.
type Draw struct {
	Name   string
	Amount int64
}

// GitHubLimits returns the names of the limits that calls of GitHub's API draw on.
func GitHubLimits(secondary bool) []string {
	limits := []string{"core", "search", "code_search", "graphql"}
	if secondary {
		limits = append(limits, "concurrent", "points", "graphql-points", "content")
	}
	return limits
}

// GitHubDraws returns the draws of a call of GitHub's API: first one of core, search, code_search and graphql, and with secondary
// limits also concurrent, points or graphql-points, and content. Reading /rate_limit is free. body is the request's, as far as known; a
// GraphQL call that cannot be read counts as a mutation.
//
// The figures are those of docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api and
// docs.github.com/graphql/overview, 2026-11-20.
func GitHubDraws(method, path, query string, body []byte, secondary bool) []Draw {
	primary := "core"
	switch {
	case path == "/rate_limit":
		return nil
	case path == "/graphql":
		primary = "graphql"
	case strings.HasPrefix(path, "/search/code"):
		primary = "code_search"
	case strings.HasPrefix(path, "/search/"):
		primary = "search"
	}
	draws := []Draw{{primary, 1}}
	if !secondary {
		return draws
	}
	points, writes := Draw{"points", 1}, !reads(method)
	if primary == "graphql" {
		points.Name, writes = "graphql-points", mutates(query, body)
	}
	if writes {
		points.Amount = 5
	}
	draws = append(draws, Draw{"concurrent", 1}, points)
	if writes && method != http.MethodDelete {
		draws = append(draws, Draw{"content", 1})
	}
	return draws
}

func reads(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

var mutation = regexp.MustCompile(`\bmutation\b`)

// mutates reports whether a GraphQL call may change anything.
func mutates(query string, body []byte) bool {
	if len(body) == 0 {
		values, err := url.ParseQuery(query)
		return err != nil || mutation.MatchString(values.Get("query"))
	}
	var asked struct {
		Query string `json:"query"`
	}
	err := json.Unmarshal(body, &asked)
	return err != nil || asked.Query == "" || mutation.MatchString(asked.Query)
}
