package gateway_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway/config"
)

// TestSecure_AmbiguousRequestsAreRefusedAsInClearText: net/http hides what proxies interpret differently, over TLS as well.
func TestSecure_AmbiguousRequestsAreRefusedAsInClearText(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), func(c *config.Config) { c.Listen = certificate(t, "a.example") })
	address := f.listen()
	const body = `{"model":"gpt-5","messages":[]}`
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	for name, rest := range map[string]string{
		"400 two framings":      "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
		"400 two lengths":       length + length + "\r\n" + body,
		"400 folded header":     "X-A: b\r\n c\r\n" + length + "\r\n" + body,
		"400 bare CR":           "X-A: b\rc\r\n" + length + "\r\n" + body,
		"200 chunked":           "Transfer-Encoding: chunked\r\n\r\n" + chunked,
		"200 length":            length + "\r\n" + body,
		"400 on the second one": length + "\r\n" + body,
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test's own certificate
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = connection.Close() }()
			in := bufio.NewReader(connection)
			ask := func(rest string) string {
				if _, err := io.WriteString(connection, "POST /openai/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"+rest); err != nil {
					t.Fatal(err)
				}
				response, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				return fmt.Sprint(response.StatusCode)
			}
			got := ask(rest)
			if strings.Contains(name, "second") {
				if got != "200" {
					t.Fatalf("the first one: %s", got)
				}
				got = ask(length + rest)
			}
			if got != name[:3] {
				t.Errorf("got %s", got)
			}
		})
	}
	if n := len(f.provider.seen()); n != 3 {
		t.Errorf("the provider saw %d calls, want 3", n)
	}
}

func TestSecure_ServesBothVersions(t *testing.T) {
	f := openAI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "http://"+r.Host+"/v1/next")
		speak(200, chatAnswer)(w, r)
	}, func(c *config.Config) { c.Listen = certificate(t, "a.example") })
	address := f.listen()
	silent, err := net.Dial("tcp", address) // its handshake blocks nobody else
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	for _, second := range []bool{false, true} {
		transport := &http.Transport{
			Protocols:       new(http.Protocols),
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a test's own certificate
		}
		transport.Protocols.SetHTTP1(!second)
		transport.Protocols.SetHTTP2(second)
		for range 2 {
			request, err := http.NewRequest(http.MethodPost, "https://"+address+"/openai/v1/chat/completions",
				strings.NewReader(`{"model":"gpt-5","messages":[]}`))
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil || response.StatusCode != http.StatusOK || string(body) != chatAnswer || (response.ProtoMajor == 2) != second {
				t.Errorf("%s: %d %s, %v", response.Proto, response.StatusCode, body, err)
			}
			if to := response.Header.Get("Location"); to != "https://"+address+"/openai/v1/next" {
				t.Errorf("%s: the next page is at %s", response.Proto, to)
			}
		}
		transport.CloseIdleConnections()
	}
	got := raw(t, "tcp", address, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 1)
	if len(got) != 1 || got[0] != "400" {
		t.Errorf("in the clear: %v", got)
	}
}
