package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/quotad/quotad/client/gateway/identity"
)

// The gateway's own routes parse requests strictly: a misspelt amount must not become 1, nor a misspelt quota be ignored.

// readQuery parses a query with the known names, each at most once unless it is in several. The name key is allowed: it may be the
// token.
func readQuery(r *http.Request, known []string, several ...string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, errors.New("the query is not percent-encoded")
	}
	for name, values := range query {
		switch {
		case name != "key" && !slices.Contains(known, name):
			return nil, fmt.Errorf("the query parameter %s is unknown; known: %s", identity.Quote(name), strings.Join(append(known, "key"), ", "))
		case len(values) > 1 && !slices.Contains(several, name):
			return nil, fmt.Errorf("the query repeats %s%s", name, severalAsJSON(name))
		}
	}
	return query, nil
}

// severalAsJSON says how to name several quotas; empty for other names.
func severalAsJSON(name string) string {
	if name == "quota" {
		return `: name several as {"items":[{"quota":"t/core","amount":1}]}`
	}
	return ""
}

// errNoBody: a request has no body.
var errNoBody = errors.New("the body is empty")

// readAsk decodes a JSON body, whatever its media type, since curl -d declares a form. form describes the expected JSON for errors.
func readAsk(r *http.Request, into any, most int64, form string) error {
	data, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil || int64(len(data)) > most {
		return fmt.Errorf("could not read the body, or it is larger than %d KiB", most>>10)
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return fmt.Errorf("the body is not JSON of the form %s: %w", form, errNoBody)
	}
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	if err = in.Decode(into); err == nil && in.InputOffset() < int64(len(data)) {
		err = errors.New("more data follows")
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s cannot be a %s in JSON", cmp.Or(wrong.Field, "the body"), wrong.Value)
	}
	if err != nil {
		return fmt.Errorf("the body is not JSON of the form %s: %s", form, strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}
