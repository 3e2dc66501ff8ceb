package gateway_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// contentTypes are types that a client may declare for a JSON body; each value is a separate header line.
var contentTypes = [][]string{
	nil,
	{"application/json"},
	{"application/vnd.api+json"},
	{"application/octet-stream"},
	{"application/x-protobuf"},
	{"text/plain"},
	{"image/png"},
	{"application/x-www-form-urlencoded"},
	{"multipart/form-data; boundary=x"},
	{"no type at all"},
	{"multipart/form-data; boundary=x", "application/json"},
	{"application/octet-stream", "application/json"},
}

// TestBody_ItsTypeHidesNothing: a provider may read a body as JSON whatever its type, so it counts as JSON on each path of a model.
func TestBody_ItsTypeHidesNothing(t *testing.T) {
	c := startCluster(t)
	p := startProvider(t, speak(200, `{}`))
	words := 100_000
	if testing.Short() { // with the race detector megabytes take long
		words = 20_000
	}
	text := strings.Repeat("word", words)
	bodies := map[string]string{
		"openai": `{"model":"m","input":"` + text + `"}`, "codex": `{"model":"m","input":"` + text + `"}`,
		"anthropic": `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`,
		"gemini":    `{"contents":[{"parts":[{"text":"` + text + `"}]}]}`,
		"azure":     `{"messages":[{"role":"user","content":"` + text + `"}]}`,
		"bedrock":   `{"messages":[{"role":"user","content":[{"text":"` + text + `"}]}]}`,
	}
	upstreams := map[string]config.Upstream{}
	for name := range bodies {
		part := "/m/tokens"
		if name == "anthropic" {
			part = "/m/input-tokens"
		}
		upstreams[name] = upstreamOf(p, name)
		c.apply(tokens(name+part, 10_000_000))
	}
	f := startGateway(t, c, p, configOf(c, upstreams), gateway.Options{})
	for name, body := range bodies {
		for _, kinds := range contentTypes {
			for encoding, sent := range map[string]string{"": body, "identity": body, "gzip": inGzip(body)} {
				explained := f.explain(t, forms[name].path, sent, http.Header{"Content-Type": kinds, "Content-Encoding": {encoding}})
				if len(explained.Draws) != 1 || explained.Draws[0].Amount < int64(words) || explained.Refusal != "" {
					t.Errorf("%s of type %q in %q: %+v", name, kinds, encoding, explained)
				}
			}
		}
		explained := f.explain(t, forms[name].path, inGzip(body), http.Header{"Content-Encoding": {"identity", "gzip"}})
		if explained.Status != http.StatusUnsupportedMediaType {
			t.Errorf("%s in two encodings: %+v", name, explained)
		}
	}
	// A body that is not JSON counts by its bytes.
	binary := strings.Repeat("\x00\x01\x02\x03", words)
	explained := f.explain(t, forms["azure"].path, binary, http.Header{"Content-Type": {"application/x-protobuf"}})
	if len(explained.Draws) != 1 || explained.Draws[0].Amount < int64(words) {
		t.Errorf("bytes: %+v", explained)
	}
}

// TestBody_OfGraphQLIsReadWhateverItsType: a mutation counts as one.
func TestBody_OfGraphQLIsReadWhateverItsType(t *testing.T) {
	c := startCluster(t)
	for _, name := range []string{"graphql", "graphql-points", "content", "concurrent"} {
		c.apply(rate("github/"+name, 1_000))
	}
	p := startProvider(t, speak(200, `{}`))
	github := upstreamOf(p, "github")
	github.Secondary = true
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"github": github}), gateway.Options{})
	for _, kinds := range contentTypes {
		explained := f.explain(t, "/github/graphql", `{"query":"mutation { addStar }"}`, http.Header{"Content-Type": kinds})
		mutates := func(d gateway.ExplainedDraw) bool { return d.Quota == "github/graphql-points" && d.Amount == 5 }
		if !slices.ContainsFunc(explained.Draws, mutates) {
			t.Errorf("type %q: %+v", kinds, explained)
		}
	}
}

// explain explains a POST.
func (f *fixture) explain(t *testing.T, path, body string, header http.Header) gateway.Explanation {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	explained, err := f.gateway.Explain(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return explained
}
