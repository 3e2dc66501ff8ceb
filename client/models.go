package client

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/rpc/signals"
)

// OpenAI governs calls of OpenAI's API that generate or embed. Each is one unit of openai/<model>/requests and an estimate of
// openai/<model>/tokens, which the response's usage settles. The estimate is the input, by its content, plus the most tokens that the
// call may produce. Without such a bound it uses the output of earlier calls to the model, or the quota's default estimate, or 4,000.
// Other calls, such as listing models, are not governed. A call whose model cannot be read counts as openai/requests.
func OpenAI(options ...ProviderOption) TransportOption { return govern(&openAI, options) }

// MatchOpenAI returns what a call of OpenAI's API draws on, for use in a custom matcher.
func MatchOpenAI(request *http.Request, options ...ProviderOption) Call {
	return openAI.with(options).call(request)
}

var openAI = upstream{
	name: "openai", hosts: []string{"api.openai.com", "*.api.openai.com"}, dialect: signals.OpenAI,
	match: func(p *upstream, request *http.Request) Call { return p.modelCall(request, whole(PartTokens)) },
}

// Azure governs calls of OpenAI's models on Azure. Each is one unit of azure/<deployment>/requests and an estimate of
// azure/<deployment>/tokens, computed as for OpenAI. Azure charges the estimate and returns nothing, so a call is never settled below
// it. The deployment comes from the path, or else from the body's model.
func Azure(options ...ProviderOption) TransportOption { return govern(&azure, options) }

// MatchAzure returns what a call of a model on Azure draws on, for use in a custom matcher.
func MatchAzure(request *http.Request, options ...ProviderOption) Call {
	return azure.with(options).call(request)
}

var azure = upstream{
	name: "azure", hosts: []string{"*.openai.azure.com", "*.services.ai.azure.com", "*.cognitiveservices.azure.com"}, dialect: signals.Azure,
	match: func(p *upstream, request *http.Request) Call { return p.modelCall(request, whole(PartCharged)) },
}

// Anthropic governs calls of Anthropic's Messages API. Each is one unit of anthropic/<model>/requests, an estimate of
// anthropic/<model>/input-tokens by its content, and one of anthropic/<model>/output-tokens from the output of earlier calls, at most
// max_tokens. max_tokens itself does not count: Anthropic counts output as it is produced. The response's usage settles both. Tokens
// read from a cache do not count as input. Other calls, such as counting tokens or batches, have separate limits and are not governed.
func Anthropic(options ...ProviderOption) TransportOption { return govern(&anthropic, options) }

// MatchAnthropic returns what a call of Anthropic's API draws on, for use in a custom matcher.
func MatchAnthropic(request *http.Request, options ...ProviderOption) Call {
	return anthropic.with(options).call(request)
}

var anthropic = upstream{
	name: "anthropic", hosts: []string{"api.anthropic.com"}, dialect: signals.Anthropic,
	match: func(p *upstream, request *http.Request) Call {
		return p.modelCall(request, []counted{{"/input-tokens", PartUncached}, {"/output-tokens", PartOutput}})
	},
}

// Gemini governs calls of Google's Gemini API that generate or embed. Each is one unit of gemini/<model>/requests and of
// gemini/<model>/requests-per-day, and an estimate of gemini/<model>/tokens, which counts input and is settled by the response's usage.
func Gemini(options ...ProviderOption) TransportOption { return govern(&gemini, options) }

// MatchGemini returns what a call of Gemini's API draws on, for use in a custom matcher.
func MatchGemini(request *http.Request, options ...ProviderOption) Call {
	return gemini.with(options).call(request)
}

var gemini = upstream{
	name: "gemini", hosts: []string{"generativelanguage.googleapis.com"}, dialect: signals.Gemini,
	match: func(p *upstream, request *http.Request) Call {
		call := p.modelCall(request, whole(PartInput))
		if call.Model != "" {
			call.Items = append(call.Items, Item{Quota: p.prefix + "/" + call.Model + "/requests-per-day", Amount: 1})
		}
		return call
	},
}

// Bedrock governs calls of models on Amazon Bedrock. Each is one unit of bedrock/<model>/requests and an estimate of
// bedrock/<model>/tokens, computed as for OpenAI and settled by the response's usage. For Claude from version 4 on, each output token
// is settled as five, as Bedrock counts it.
func Bedrock(options ...ProviderOption) TransportOption { return govern(&bedrock, options) }

// MatchBedrock returns what a call of a model on Bedrock draws on, for use in a custom matcher.
func MatchBedrock(request *http.Request, options ...ProviderOption) Call {
	return bedrock.with(options).call(request)
}

var bedrock = upstream{
	name: "bedrock", hosts: []string{"bedrock-runtime.*.amazonaws.com", "bedrock-runtime-fips.*.amazonaws.com"}, dialect: signals.Bedrock,
	match: func(p *upstream, request *http.Request) Call { return p.modelCall(request, whole(PartTokensUncached)) },
}

// counted is a quota of a model, and the part of its tokens that it counts.
type counted struct {
	suffix string
	part   Part
}

func whole(part Part) []counted { return []counted{{"/tokens", part}} }

// modelCall returns what a call of a model draws on: one request, and the parts of its tokens.
func (p *upstream) modelCall(request *http.Request, parts []counted) Call {
	route := estimate.RouteOf(p.dialect, request.URL)
	if route.Operation == estimate.Other || request.Body == nil || request.Body == http.NoBody {
		return Call{}
	}
	asked := readRequest(p.dialect, route, request)
	if asked.Model == "" {
		return Call{Items: []Item{{Quota: p.prefix + "/requests", Amount: 1}}}
	}
	call := Call{Prefix: p.prefix, Model: p.model(asked.Model), Request: asked, Parts: map[string]Part{}}
	name := p.prefix + "/" + call.Model
	call.Items = append(call.Items, Item{Quota: name + "/requests", Amount: 1})
	for _, c := range parts {
		call.Items = append(call.Items, Item{Quota: name + c.suffix})
		call.Parts[name+c.suffix] = c.part
	}
	call.appraise(asked.Amounts(0))
	return call
}

// maxModelBody is how much of a request's body to read for its estimate, in bytes.
const maxModelBody = 32 << 20

// readRequest reads a copy of the request's body. Without a copy, only the length is known.
func readRequest(dialect signals.Dialect, route estimate.Route, request *http.Request) *estimate.Request {
	unread := &estimate.Request{Dialect: dialect, Route: route, Size: max(request.ContentLength, 0)}
	unread.Content.Unread = unread.Size
	if request.GetBody == nil {
		return unread
	}
	body, err := request.GetBody()
	if err != nil {
		return unread
	}
	defer func() { _ = body.Close() }()
	kind := request.Header.Get("Content-Type")
	if strings.HasPrefix(strings.ToLower(kind), "multipart/") {
		head, err := io.ReadAll(io.LimitReader(body, estimate.MultipartHead))
		if err == nil && unread.Model == "" {
			unread.Model = estimate.ModelOfMultipart(kind, head)
		}
		return unread
	}
	reader := io.Reader(body)
	if strings.EqualFold(request.Header.Get("Content-Encoding"), "gzip") {
		if reader, err = gzip.NewReader(body); err != nil {
			return unread
		}
	}
	return estimate.Read(dialect, route, io.LimitReader(reader, maxModelBody))
}
