// Package estimate says how many tokens a call of a model will use, before it is sent.
//
// It has three parts, which are pure: no network, no clock of their own.
//
//   - [RouteOf] reads a URL: what kind of call it is and, where the path names it, for which model.
//   - A [Scanner] reads the request's body as it passes, in bounded memory. Keys may come in any order. It never fails: what it
//     cannot read counts by its bytes. The result is a [Request]: the model, the content by kind, and the bound on the output.
//   - A [Learner] remembers what earlier calls of the same (upstream, model, holder) really used, and turns a Request into
//     [Amounts]. It is safe for concurrent use, and its tables are bounded.
//
// [Amounts] has the output twice, since providers count it in two ways. OpenAI, Azure and Bedrock count the output's bound
// when a call arrives: Input + Bound ([Amounts.AtArrival]). Anthropic counts output as it is produced and max_tokens not at all:
// Likely. Gemini counts input alone.
//
// An estimate can be above what a quota ever grants. Cutting it to what fits is the caller's decision.
package estimate
