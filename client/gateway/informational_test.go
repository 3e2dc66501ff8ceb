package gateway_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

// whole sends a request that closes its connection, and returns the whole response.
func whole(tb testing.TB, address, request string) string {
	tb.Helper()
	connection, err := net.Dial("tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	if _, err := connection.Write([]byte(request)); err != nil {
		tb.Fatal(err)
	}
	data, err := io.ReadAll(connection)
	if err != nil {
		tb.Fatal(err)
	}
	return string(data)
}

// TestInformational_AnswersPassAndTheFinalOneIsWhole: 103 passes, 100 is the gateway's own, and neither removes headers of the final
// answer.
func TestInformational_AnswersPassAndTheFinalOneIsWhole(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusContinue)
		w.WriteHeader(http.StatusProcessing)
		if r.Header.Get("X-Break") != "" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Del("Link")
		speak(200, chatAnswer)(w, r)
	})
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	address := f.listen()
	const body = `{"model":"gpt-5","messages":[]}`
	for name, ask := range map[string]struct {
		version, header string
		want            []string
	}{
		"plain":            {"1.1", "", []string{"103", "102", "200"}},
		"expects":          {"1.1", "Expect: 100-continue\r\n", []string{"100", "103", "102", "200"}},
		"no answer at all": {"1.1", "X-Break: 1\r\n", []string{"103", "102", "502"}},
		"an old client":    {"1.0", "", []string{"200"}},
	} {
		got := whole(t, address, fmt.Sprintf("POST /openai/v1/chat/completions HTTP/%s\r\nHost: localhost\r\nConnection: close\r\n%s"+
			"Content-Length: %d\r\n\r\n%s", ask.version, ask.header, len(body), body))
		var statuses []string
		heads := strings.Split("\r\n\r\n"+got, "\r\n\r\nHTTP/1.")[1:]
		for _, head := range heads {
			statuses = append(statuses, head[2:5])
		}
		if fmt.Sprint(statuses) != fmt.Sprint(ask.want) {
			t.Errorf("%s: got %v, want %v", name, statuses, ask.want)
			continue
		}
		if last := heads[len(heads)-1]; strings.Count(last, "X-Quotad-Request-Id: qgw_") != 1 || strings.Contains(last, "preload") {
			t.Errorf("%s: the last answer is %s", name, last)
		}
		if early := heads[0]; len(heads) > 1 && strings.HasPrefix(early[2:], "103") && !strings.Contains(early, "preload") {
			t.Errorf("%s: the early hints are %s", name, early)
		}
	}
}
