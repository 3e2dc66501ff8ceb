// Package usage reads what the answers of models say was used, as they pass.
//
// A [Meter] is an io.Writer for a copy of an answer's body, in pieces of any size. It never fails and never waits, so it has
// no effect on the stream that it copies. It knows the answers of OpenAI (chat, completions, Responses, embeddings, pictures,
// transcriptions) and of those that copy them, of Anthropic, Gemini, and Bedrock: as JSON, as server-sent events, as Amazon's event
// streams, each of them also in gzip. It finds out by itself which one it has.
//
// Only the members that the providers name are read, at their own place, so what a model writes cannot be taken for them. The last
// value counts. What an answer does not say is unknown, which is not zero.
//
// Memory is bounded: JSON is scanned as it passes, and an event above 1 MiB is not read.
package usage
