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

// What the gateway's own routes are asked is read strictly: a misspelt amount must not become 1, nor a misspelt quota be left out.

// readQuery reads a query that may have the given names, each once unless it is one of several. A key may be the caller's token.
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
			return nil, fmt.Errorf("the query repeats %s", name)
		}
	}
	return query, nil
}

// errNoBody says that a request has no body.
var errNoBody = errors.New("the body is empty")

// readAsk reads a body as JSON of a form, whatever its type: curl -d says that it sends a form.
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
