// Package estimate estimates how many tokens a call to a model will use, before it is sent.
//
// It has three parts, which are pure: no network, no clock of their own.
//
//   - [RouteOf] reads a URL: the kind of call and, if the path names it, the model.
//   - A [Scanner] reads the request's body as it passes, in bounded memory. Keys may come in any order. It never fails: data that it
//     cannot parse counts by its bytes. The result is a [Request]: the model, the content by kind, and the bound on the output.
//   - A [Learner] records what earlier calls of the same (upstream, model, holder) actually used, and turns a Request into
//     [Amounts]. It is safe for concurrent use, and its tables are bounded.
//
// [Amounts] has two outputs, since providers count output in two ways. OpenAI, Azure and Bedrock count the bound of the output when a
// call arrives: Input + Bound ([Amounts.AtArrival]). Anthropic counts output as it is produced, and max_tokens not at all: Likely.
// Gemini counts input alone.
//
// An estimate can exceed what a quota can ever grant. The caller decides whether to cut it.
package estimate
