package gateway

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// filtered passes a stream through a filter in pieces.
func filtered(stream string, piece func() int) string {
	f := filterFor(http.Header{"Content-Type": {"text/event-stream"}})
	in := strings.NewReader(stream)
	out, err := io.ReadAll(readerOf(func(p []byte) (int, error) {
		return f.read(p, func(q []byte) (int, error) { return in.Read(q[:min(len(q), piece())]) })
	}))
	if err != nil {
		panic(err)
	}
	return string(out)
}

func TestFilter_WithholdsUsageAloneHoweverItIsCut(t *testing.T) {
	kinds := []string{
		"data: {\"choices\":[{\"delta\":{\"content\":\"usage\"}}],\"usage\":null}", "data: {\"choices\":[],\"prompt_filter_results\":[]}",
		": ping",
		"data: [DONE]", "event: x\ndata: {\"choices\":[],\ndata: \"usage\":{}}", "data: {\"choices\":[],\"usage\":{\"total_tokens\":3}}",
		"data: {\"usage\":{}}",
	}
	withheld := map[int]bool{4: true, 5: true}
	rapid.Check(t, func(t *rapid.T) {
		end := rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(t, "end")
		var stream, want strings.Builder
		for _, kind := range rapid.SliceOfN(rapid.IntRange(0, len(kinds)-1), 0, 12).Draw(t, "events") {
			event := strings.ReplaceAll(kinds[kind]+"\n\n", "\n", end)
			stream.WriteString(event)
			if !withheld[kind] {
				want.WriteString(event)
			}
		}
		if rapid.Bool().Draw(t, "cut off") {
			stream.WriteString("data: {\"choices\":[],\"usage\":{")
			want.WriteString("data: {\"choices\":[],\"usage\":{")
		}
		got := filtered(stream.String(), func() int { return rapid.IntRange(1, 40).Draw(t, "piece") })
		if got != want.String() {
			t.Fatalf("%q\ngives %q\nwant  %q", stream.String(), got, want.String())
		}
	})
}

func TestFilter_PassesEventsThatAreTooLong(t *testing.T) {
	long := "data: {\"choices\":[],\"usage\":{\"a\":\"" + strings.Repeat("x", maxEvent) + "\"}}\n\n"
	if got := filtered(long+"data: [DONE]\n\n", func() int { return 32 << 10 }); got != long+"data: [DONE]\n\n" {
		t.Errorf("%d bytes of %d passed", len(got), len(long))
	}
}

func FuzzFilter(f *testing.F) {
	f.Add("data: {\"choices\":[],\"usage\":{}}\r\n\r\ndata: [DONE]\n\n", 3)
	f.Fuzz(func(t *testing.T, stream string, piece int) {
		got := filtered(stream, func() int { return max(piece%50, 1) })
		if len(got) > len(stream) || !strings.Contains(stream, "usage") && got != stream {
			t.Errorf("%q gives %q", stream, got)
		}
	})
}

func FuzzHead(f *testing.F) {
	f.Add("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "/a/..%2f")
	f.Fuzz(func(t *testing.T, head, path string) {
		if end := headEnd([]byte(head)); end > len(head) {
			t.Errorf("%q ends at %d", head, end)
		}
		wrong := wrongHead([]byte(head))
		lower := strings.ToLower(head)
		if wrong == "" && strings.Contains(lower, "\ncontent-length:") && strings.Contains(lower, "\ntransfer-encoding:") {
			t.Errorf("%q is taken", head)
		}
		if !dotted(path) && (strings.HasSuffix(path, "/..") || strings.Contains(path, "/../")) {
			t.Errorf("%q has no dots", path)
		}
	})
}

func TestLinks_OfOtherOriginsStay(t *testing.T) {
	u := &upstream{base: mustURL("https://api.github.com/v3")}
	c := &call{route: route{upstream: u, prefix: "/as/x/github"}, scheme: "http", clientHost: "127.0.0.1:7452"}
	for from, want := range map[string]string{
		"https://api.github.com/v3/user?page=2":    "http://127.0.0.1:7452/as/x/github/user?page=2",
		"https://API.github.com/v3":                "http://127.0.0.1:7452/as/x/github",
		"https://api.github.com/v35/user":          "https://api.github.com/v35/user",
		"http://api.github.com/v3/user":            "http://api.github.com/v3/user",
		"https://api.github.com.evil.example/v3/x": "https://api.github.com.evil.example/v3/x",
		"/relative":                            "/relative",
		"https://api.github.com/v3/a%2Fb#frag": "http://127.0.0.1:7452/as/x/github/a%2Fb#frag",
	} {
		if got := c.rebased(from); got != want {
			t.Errorf("%s gives %s, want %s", from, got, want)
		}
	}
	h := http.Header{"Link": {`<https://api.github.com/v3/a>; rel="next", <https://x.example/b>`}}
	c.rebase(h)
	if got := h.Get("Link"); got != `<http://127.0.0.1:7452/as/x/github/a>; rel="next", <https://x.example/b>` {
		t.Errorf("Link: %s", got)
	}
}

func TestEncodings_AreReducedToReadable(t *testing.T) {
	for accepted, want := range map[string]string{
		"br, gzip, zstd": "gzip", "br": "identity", "": "identity", "gzip;q=0": "identity", "*": "gzip", "GZIP; q=0.5": "gzip",
	} {
		h := http.Header{"Accept-Encoding": {accepted}}
		reduceEncodings(h)
		if got := h.Get("Accept-Encoding"); got != want {
			t.Errorf("%q gives %q, want %q", accepted, got, want)
		}
	}
}

func TestUsage_IsInjectedIntoAnyObject(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m"}`: `{"stream_options":{"include_usage":true},"model":"m"}`, " {  } ": ` {"stream_options":{"include_usage":true}  } `,
		"[]": "[]",
	} {
		c := &call{body: newBody(body)}
		c.injectUsage()
		if got := c.body.data; !bytes.Equal(got, []byte(want)) {
			t.Errorf("%s gives %s", body, got)
		}
	}
}

func newBody(text string) *body { return &body{data: []byte(text)} }

func mustURL(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	return u
}
