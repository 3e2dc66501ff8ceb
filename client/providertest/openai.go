package providertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// openaiKey is the subject of OpenAI's limits.
type openaiKey struct{ key, model string }

// openaiLimits are the counts for one key and model.
type openaiLimits struct{ requests, tokens meter }

// defaultMaxTokens is the charge of a request that does not bound its completion.
const defaultMaxTokens = 16

func (p *Provider) openaiLocked(key, model string) *openaiLimits {
	at := openaiKey{key, model}
	if p.openai[at] == nil {
		period := p.cfg.scaled(p.cfg.OpenAI.Per)
		p.openai[at] = &openaiLimits{
			requests: newMeter(p.cfg.OpenAI.Algorithm, p.cfg.OpenAI.Requests, period),
			tokens:   newMeter(p.cfg.OpenAI.Algorithm, p.cfg.OpenAI.Tokens, period),
		}
	}
	return p.openai[at]
}

// showOpenAI fills in the present use, over all models of the key.
func (p *Provider) showOpenAI(now time.Time, t *Totals) {
	for at, limits := range p.openai {
		if at.key == t.Key {
			t.Used += limits.requests.used(now)
			t.UsedTokens += limits.tokens.used(now)
		}
	}
	t.Limit, t.LimitTokens = p.cfg.OpenAI.Requests, p.cfg.OpenAI.Tokens
}

// openaiCall is how one request counts at OpenAI.
type openaiCall struct {
	Model               string          `json:"model"`
	Messages            json.RawMessage `json:"messages"`
	Input               json.RawMessage `json:"input"`
	MaxTokens           int64           `json:"max_tokens"`
	MaxCompletionTokens int64           `json:"max_completion_tokens"`
	MaxOutputTokens     int64           `json:"max_output_tokens"`
	Stream              bool            `json:"stream"`
}

// prompt estimates the tokens of the prompt, four characters each.
func (c openaiCall) prompt() int64 { return int64(len(c.Messages)+len(c.Input)+3) / 4 }

// charge is the call's charge on arrival: the larger of the bound of its answer and its prompt.
func (c openaiCall) charge() int64 {
	return max(c.MaxTokens, c.MaxCompletionTokens, c.MaxOutputTokens, defaultMaxTokens, c.prompt())
}

func (x *exchange) serveOpenAI() {
	x.w.Header().Set("Content-Type", "application/json")
	var call openaiCall
	err := json.Unmarshal(x.body, &call)
	switch {
	case x.r.URL.Path != "/v1/chat/completions" && x.r.URL.Path != "/v1/responses":
		x.rejected(http.StatusNotFound, openaiError("Unknown request URL.", "invalid_request_error", "unknown_url"))
		return
	case err != nil || x.r.Method != http.MethodPost || call.Model == "":
		x.rejected(http.StatusBadRequest, openaiError("We could not parse the JSON body of your request.", "invalid_request_error",
			"invalid_body"))
		return
	}

	p := x.p
	p.mu.Lock()
	now := p.cfg.Now()
	limits, tokens := p.openaiLocked(x.key, call.Model), call.charge()
	verdict, refusal := limits.judge(now, tokens, p.cfg.OpenAI)
	status := http.StatusOK
	if verdict != Admitted {
		status = http.StatusTooManyRequests
	}
	x.recordLocked(now, call.Model, tokens, status, verdict, time.Time{})
	x.openaiHeaders(now, limits)
	latency := p.latencyLocked(p.cfg.OpenAI.Latency)
	p.mu.Unlock()

	if verdict != Admitted {
		x.openaiRefuse(call, refusal)
		return
	}
	x.hold(latency)
	x.openaiAnswer(call)
}

// openaiRefusal is OpenAI's information about an exceeded limit.
type openaiRefusal struct {
	family, unit           string
	limit, used, requested int64
	wait                   time.Duration
	// tooLarge: the request could never be admitted.
	tooLarge bool
}

// judge charges a call to both limits, or returns the limit that refuses it.
func (l *openaiLimits) judge(now time.Time, tokens int64, cfg OpenAI) (Verdict, openaiRefusal) {
	if cfg.Tokens >= 0 && tokens > cfg.Tokens {
		return LimitTokens, openaiRefusal{
			family: "tokens", unit: "tokens per min (TPM)", limit: cfg.Tokens, used: l.tokens.used(now), requested: tokens, tooLarge: true,
		}
	}
	if cfg.Requests >= 0 {
		if used := l.requests.used(now); used+1 > cfg.Requests {
			if !cfg.RefusedFree {
				l.requests.take(now, 1)
			}
			return LimitRequests, openaiRefusal{
				family: "requests", unit: "requests per min (RPM)", limit: cfg.Requests, used: min(used, cfg.Requests), requested: 1,
				wait: l.requests.wait(now, 1),
			}
		}
	}
	if cfg.Tokens >= 0 {
		if wait := l.tokens.wait(now, tokens); wait > 0 {
			if !cfg.RefusedFree {
				l.requests.take(now, 1)
			}
			return LimitTokens, openaiRefusal{
				family: "tokens", unit: "tokens per min (TPM)", limit: cfg.Tokens, used: l.tokens.used(now), requested: tokens, wait: wait,
			}
		}
	}
	l.requests.take(now, 1)
	l.tokens.take(now, tokens)
	return Admitted, openaiRefusal{}
}

func (x *exchange) openaiHeaders(now time.Time, l *openaiLimits) {
	h, cfg := x.w.Header(), x.p.cfg.OpenAI
	set := func(unit string, limit int64, m meter) {
		if limit < 0 {
			return
		}
		h.Set("X-Ratelimit-Limit-"+unit, strconv.FormatInt(limit, 10))
		h.Set("X-Ratelimit-Remaining-"+unit, strconv.FormatInt(max(limit-m.used(now), 0), 10))
		h.Set("X-Ratelimit-Reset-"+unit, m.fullIn(now).Round(time.Millisecond).String())
	}
	set("Requests", cfg.Requests, l.requests)
	set("Tokens", cfg.Tokens, l.tokens)
	x.p.ids++
	h.Set("X-Request-Id", fmt.Sprintf("req_%016x", x.p.ids))
}

func (x *exchange) openaiRefuse(call openaiCall, r openaiRefusal) {
	counts := fmt.Sprintf("Limit %d, Used %d, Requested %d.", r.limit, r.used, r.requested)
	if r.tooLarge {
		x.w.Header().Set("X-Should-Retry", "false")
		x.answer(http.StatusTooManyRequests, openaiError(fmt.Sprintf("Request too large for %s in organization org-test on %s: %s "+
			"The input or output tokens must be reduced in order to run successfully.", call.Model, r.unit, counts), r.family,
			"rate_limit_exceeded"))
		return
	}
	wait := max(r.wait, time.Millisecond)
	x.w.Header().Set("Retry-After", wholeSeconds(wait))
	x.w.Header().Set("Retry-After-Ms", strconv.FormatInt(int64((wait+time.Millisecond-1)/time.Millisecond), 10))
	x.answer(http.StatusTooManyRequests, openaiError(fmt.Sprintf("Rate limit reached for %s in organization org-test on %s: %s "+
		"Please try again in %s. Visit https://platform.openai.com/account/rate-limits to learn more.",
		call.Model, r.unit, counts, openaiSeconds(wait)), r.family, "rate_limit_exceeded"))
}

// openaiSeconds formats a wait as in OpenAI's messages: 41.724s, 850ms.
func openaiSeconds(d time.Duration) string {
	if d < time.Second {
		return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10) + "ms"
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) + "s"
}

func openaiError(message, family, code string) string {
	body, err := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": family, "param": nil, "code": code}})
	if err != nil {
		return `{"error":{"message":"internal error","type":"server_error","param":null,"code":null}}`
	}
	return string(body)
}

func (x *exchange) openaiAnswer(call openaiCall) {
	answered := max(call.MaxTokens, call.MaxCompletionTokens, call.MaxOutputTokens, defaultMaxTokens) / 2
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, call.prompt(), answered, call.prompt()+answered)
	if !call.Stream {
		x.answer(http.StatusOK, `{"id":"chatcmpl-1","object":"chat.completion","model":`+strconv.Quote(call.Model)+
			`,"choices":[{"index":0,"message":{"role":"assistant","content":"done"},"finish_reason":"stop"}],"usage":`+usage+`}`)
		return
	}
	x.w.Header().Set("Content-Type", "text/event-stream")
	x.w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(x.w)
	for _, piece := range []string{
		`{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"do"}}]}`,
		`{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"ne"},"finish_reason":"stop"}]}`,
		`{"object":"chat.completion.chunk","choices":[],"usage":` + usage + `}`,
		`[DONE]`,
	} {
		if _, err := io.Copy(x.w, strings.NewReader("data: "+piece+"\n\n")); err != nil {
			return
		}
		if flush.Flush() != nil {
			return
		}
	}
}
