package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestBody_MustNotBeSilentForAMinute: a body of which no byte arrives for 60 s is refused with 408 in the provider's form. One that
// arrives slowly is accepted.
func TestBody_MustNotBeSilentForAMinute(t *testing.T) {
	with := setting{dialects: []string{"openai", "anthropic"}, answer: speak(200, `{}`), quotas: []*quotav1.Quota{
		quotatest.Rate("openai/m/requests", 10, time.Minute), quotatest.Rate("anthropic/m/requests", 10, time.Minute),
	}}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		for name, says := range map[string]string{"openai": `{"error":{"code":`, "anthropic": `"type":"error"`} {
			for _, goesOn := range []bool{false, true} {
				form := forms[name]
				connection, err := b.clients.dial(t.Context(), "tcp", "gateway")
				if err != nil {
					t.Fatal(err)
				}
				_, _ = fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", form.path, len(form.body))
				began := time.Now()
				var writer sync.WaitGroup
				writer.Go(func() {
					for at := range 3 {
						_, _ = io.WriteString(connection, form.body[at:at+1])
						b.after(50 * time.Second)
					}
					if goesOn {
						_, _ = io.WriteString(connection, form.body[3:])
					}
				})
				response, err := http.ReadResponse(bufio.NewReader(connection), nil)
				if err != nil {
					t.Fatal(err)
				}
				got, _ := io.ReadAll(response.Body)
				took := time.Since(began)
				if goesOn && response.StatusCode != http.StatusOK {
					t.Errorf("%s: a slow body: %d %s after %v", name, response.StatusCode, got, took)
				}
				if !goesOn && (response.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(got), says) || took != 160*time.Second) {
					t.Errorf("%s: a silent body: %d %s after %v", name, response.StatusCode, got, took)
				}
				_ = connection.Close()
				writer.Wait()
			}
		}
		if n := len(b.provider.seen()); n != 2 {
			t.Errorf("%d calls were sent", n)
		}
	})
}
