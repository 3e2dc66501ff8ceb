package client

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/quotad/quotad/client/signals"
)

// OpenAI governs calls of OpenAI's API: each is one unit of openai/<model>/requests and an estimate of
// openai/<model>/tokens, which is settled by the usage that the response names. The estimate is a quarter of the body's
// bytes and the most tokens that the call may produce; without such a bound it is the quota's default estimate. Requests
// without a body, such as listing models, are not governed; one whose model cannot be read counts as openai/requests.
func OpenAI() TransportOption {
	return func(s *transportSettings) { s.dialect, s.match = signals.OpenAI, matchOpenAI }
}

func matchOpenAI(request *http.Request) Call {
	asked, ok := readAsk(request)
	switch {
	case !ok:
		return Call{}
	case asked.model == "":
		return Call{Items: []Item{{Quota: "openai/requests", Amount: 1}}}
	}
	call := asked.call("openai/" + asked.model)
	call.Usage = map[string]string{"total_tokens": call.Items[1].Quota}
	return call
}

// Azure governs calls of OpenAI's models on Azure: each is one unit of azure/<deployment>/requests and an estimate of
// azure/<deployment>/tokens, as OpenAI's. Azure charges the estimate and gives nothing back, so it is not settled. The
// deployment is the path's, or else the body's model.
func Azure() TransportOption {
	return func(s *transportSettings) { s.dialect, s.match = signals.Azure, matchAzure }
}

func matchAzure(request *http.Request) Call {
	asked, ok := readAsk(request)
	if !ok {
		return Call{}
	}
	if deployment := pathAfter(request.URL, "deployments"); deployment != "" {
		asked.model = deployment
	}
	if asked.model == "" {
		return Call{Items: []Item{{Quota: "azure/requests", Amount: 1}}}
	}
	return asked.call("azure/" + asked.model)
}

// Anthropic governs calls of Anthropic's Messages API: each is one unit of anthropic/<model>/requests, a quarter of the
// body's bytes of anthropic/<model>/input-tokens, and max_tokens of anthropic/<model>/output-tokens. Both are settled by
// the usage that the response names, once it was read to its end. What is read from a cache does not count as input.
// Other calls, such as counting tokens or batches, have limits of their own and are not governed.
func Anthropic() TransportOption {
	return func(s *transportSettings) { s.dialect, s.match = signals.Anthropic, matchAnthropic }
}

func matchAnthropic(request *http.Request) Call {
	asked, ok := readAsk(request)
	switch {
	case !ok || !strings.HasSuffix(request.URL.Path, "/messages"):
		return Call{}
	case asked.model == "":
		return Call{Items: []Item{{Quota: "anthropic/requests", Amount: 1}}}
	}
	prefix := "anthropic/" + asked.model
	in, out := prefix+"/input-tokens", prefix+"/output-tokens"
	return Call{
		Items: []Item{{Quota: prefix + "/requests", Amount: 1}, {Quota: in, Amount: asked.prompt}, {Quota: out, Amount: asked.most}},
		Usage: map[string]string{"input_tokens": in, "cache_creation_input_tokens": in, "output_tokens": out}, UsageAtEnd: true,
	}
}

// Gemini governs calls of Google's Gemini API that generate: each is one unit of gemini/<model>/requests and of
// gemini/<model>/requests-per-day, and a quarter of the body's bytes of gemini/<model>/tokens, which counts input and is
// settled by the usage that the response names.
func Gemini() TransportOption {
	return func(s *transportSettings) { s.dialect, s.match = signals.Gemini, matchGemini }
}

func matchGemini(request *http.Request) Call {
	model, method, _ := strings.Cut(pathAfter(request.URL, "models"), ":")
	asked, ok := readAsk(request)
	if !ok || model == "" || !strings.HasSuffix(strings.ToLower(method), "generatecontent") {
		return Call{}
	}
	prefix := "gemini/" + model
	return Call{
		Items: []Item{{Quota: prefix + "/requests", Amount: 1}, {Quota: prefix + "/tokens", Amount: asked.prompt}, {Quota: prefix + "/requests-per-day", Amount: 1}},
		Usage: map[string]string{"promptTokenCount": prefix + "/tokens"},
	}
}

// Bedrock governs calls of models on Amazon Bedrock: each is one unit of bedrock/<model>/requests and an estimate of
// bedrock/<model>/tokens, as OpenAI's, which is settled by the usage that Converse names.
func Bedrock() TransportOption {
	return func(s *transportSettings) { s.dialect, s.match = signals.Bedrock, matchBedrock }
}

func matchBedrock(request *http.Request) Call {
	model := pathAfter(request.URL, "model")
	asked, ok := readAsk(request)
	if !ok || model == "" {
		return Call{}
	}
	call := asked.call("bedrock/" + model)
	call.Usage = map[string]string{"totalTokens": call.Items[1].Quota}
	return call
}

// pathAfter returns the part of a path that follows one of a name.
func pathAfter(u *url.URL, name string) string {
	_, rest, _ := strings.Cut(u.EscapedPath(), "/"+name+"/")
	part, _, _ := strings.Cut(rest, "/")
	part, err := url.PathUnescape(part)
	if err != nil {
		return ""
	}
	return part
}

// maxBodyRead is how much of a request's body is read to find its model, in bytes.
const maxBodyRead = 1 << 20

// ask is what a request to a model asks for. Amounts of 0 are not known.
type ask struct {
	model string
	// prompt estimates the prompt's tokens: four bytes of the body each.
	prompt int64
	// most is the most tokens that each of its choices may produce.
	most, choices int64
}

// call is a request and its tokens, the prompt's and those that it may produce.
func (a *ask) call(prefix string) Call {
	tokens := Item{Quota: prefix + "/tokens"}
	if a.most > 0 && a.prompt > 0 {
		tokens.Amount = min(a.prompt+a.most*max(a.choices, 1), maxAmount)
	}
	return Call{Items: []Item{{Quota: prefix + "/requests", Amount: 1}, tokens}}
}

// readAsk reads a copy of the request's body as far as it has to. What it cannot read is left empty; a request without a
// body asks for nothing.
func readAsk(request *http.Request) (asked ask, ok bool) {
	if request.Body == nil || request.Body == http.NoBody {
		return asked, false
	}
	if request.ContentLength >= 0 {
		asked.prompt = max(request.ContentLength/4, 1)
	}
	if request.GetBody == nil {
		return asked, true
	}
	body, err := request.GetBody()
	if err != nil {
		return asked, true
	}
	defer func() { _ = body.Close() }()
	in := json.NewDecoder(io.LimitReader(body, maxBodyRead))
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return asked, true
	}
	for in.More() {
		key, err := in.Token()
		if err != nil {
			return asked, true
		}
		var value json.RawMessage
		if in.Decode(&value) != nil {
			return asked, true
		}
		asked.take(key, value)
	}
	return asked, true
}

// take reads one field of a request's body.
func (a *ask) take(key json.Token, value json.RawMessage) {
	switch key {
	case "model":
		_ = json.Unmarshal(value, &a.model)
	case "max_tokens", "max_completion_tokens", "max_output_tokens":
		a.most = max(a.most, boundedCount(value))
	case "n":
		a.choices = boundedCount(value)
	case "inferenceConfig":
		var bounds struct {
			MaxTokens json.RawMessage `json:"maxTokens"`
		}
		if json.Unmarshal(value, &bounds) == nil && bounds.MaxTokens != nil {
			a.most = max(a.most, boundedCount(bounds.MaxTokens))
		}
	}
}

// boundedCount reads a count that no sensible request exceeds, so that products of two do not overflow.
func boundedCount(value json.RawMessage) int64 {
	var n int64
	if json.Unmarshal(value, &n) != nil {
		return 0
	}
	return min(max(n, 0), 1<<24)
}
