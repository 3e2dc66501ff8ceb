// Package usage reads the token usage that models' answers state, as the answers pass.
//
// A [Meter] is an io.Writer for a copy of an answer's body, in pieces of any size. It never fails and never waits, so it does not
// affect the stream. It reads the answers of OpenAI (chat, completions, Responses, embeddings, images, transcriptions) and compatible
// providers, of Anthropic, Gemini, and Bedrock: as JSON, as server-sent events, or as Amazon's event streams, each also in gzip. It
// detects the format.
//
// It reads only the providers' documented members, at their documented places, so a model's output cannot imitate them. The last value
// counts. A missing value is unknown, which differs from zero.
//
// Memory is bounded: JSON is scanned as it passes, and an event above 1 MiB is skipped.
package usage
