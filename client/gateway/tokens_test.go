package gateway_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
)

func TestTokens_WrongOnesAreThrottledAndKeepNoRightOneOut(t *testing.T) {
	c := startCluster(t, rate("openai/gpt-5/requests", 100))
	p := startProvider(t, speak(200, chatAnswer))
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.Tokens = "tokens.yaml"
	tokens := someTokens{"qtd_red_x": {ID: "red", Pattern: "red*", MaxClass: config.Standard}}
	f := startGateway(t, c, p, conf, gateway.Options{Tokens: tokens})
	for _, path := range []string{forms["openai"].path, "/status"} {
		ask := func(token string) int {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(`{"model":"gpt-5","input":"x"}`))
			request.Host, request.RemoteAddr = "localhost", "192.0.2.1:1" // not of loopback, where the status is shown without a token
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("X-Quotad-Token", token)
			answer := httptest.NewRecorder()
			f.gateway.Handler().ServeHTTP(answer, request)
			return answer.Code
		}
		eventually(t, "wrong tokens are throttled at "+path, func() bool {
			throttled := false
			for range 20 {
				throttled = ask("qtd_red_wrong") == http.StatusTooManyRequests || throttled
			}
			return throttled
		})
		if status := ask("qtd_red_x"); status != http.StatusOK {
			t.Errorf("%s: a right token got %d", path, status)
		}
	}
}
