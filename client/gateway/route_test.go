package gateway_test

import (
	"net/http"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestRoute_NamesThePrefixes: for a path that begins with none of them. The usual mistake is a missing or repeated /v1.
func TestRoute_NamesThePrefixes(t *testing.T) {
	with := setting{dialects: []string{"openai", "github"}, answer: speak(200, `{}`)}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		for _, path := range []string{
			"/v1/responses", "/", "/openais/v1/responses", "/as/worf/v1/responses", "/as//openai/v1/responses", "/as/worf",
		} {
			got := b.do(http.MethodPost, path, `{"model":"m"}`)
			if got.status != http.StatusNotFound || !strings.Contains(got.body, "begin the path with one of /github, /openai and") {
				t.Errorf("%s: %d %s", path, got.status, got.body)
			}
		}
		if n := len(b.provider.seen()); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

// TestRoute_RedirectsPass: the client follows them, or not. A limit of another host closes nothing.
func TestRoute_RedirectsPass(t *testing.T) {
	with := setting{
		dialects: []string{"github"}, quotas: []*quotav1.Quota{quotatest.Rate("github/core", 100, time.Minute)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://blobs.example/x")
			speak(http.StatusTemporaryRedirect, `{}`)(w, r)
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		got := b.do(http.MethodGet, "/github/repos/a/b/tarball", "")
		if got.status != http.StatusTemporaryRedirect || got.header.Get("Location") != "http://blobs.example/x" {
			t.Errorf("got %d, %v", got.status, got.header)
		}
		if seen := b.provider.seen(); len(seen) != 1 || seen[0].host != "provider.example" {
			t.Errorf("sent were %+v", seen)
		}
		b.consumed("github/core", 1)
	})
}

// TestSocket_NamesTheUser: a caller over the socket that shows neither a name nor a key is its user.
func TestSocket_NamesTheUser(t *testing.T) {
	me, err := user.Current()
	if err != nil || runtime.GOOS != "linux" {
		t.Skip("only Linux names the other end of a socket", err)
	}
	c := startCluster(t, rate("github/core", 100))
	p := startProvider(t, speak(200, `{}`))
	conf := configOf(c, map[string]config.Upstream{"github": upstreamOf(p, "github")})
	conf.Listen = config.Listen{Unix: filepath.Join(t.TempDir(), "gateway.sock")}
	f := startGateway(t, c, p, conf, gateway.Options{})
	f.listen()
	request := "GET /github/user HTTP/1.1\r\nHost: localhost\r\n\r\n"
	if got := raw(t, "unix", conf.Listen.Unix, request, 1); len(got) != 1 || got[0] != "200" {
		t.Fatalf("got %v", got)
	}
	f.logs(t, "holder="+me.Username+"@node-7", 1)
	if got := f.do(http.MethodGet, "/github/user", ""); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	f.logs(t, "holder=unnamed@node-7", 1)
}
