package usage_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"

	"github.com/quotad/quotad/client/usage"
)

// vector is an answer and its statements: input, cached, written, output, with "-" for missing values.
type vector struct {
	name   string
	header http.Header
	body   string
	want   string
}

func header(kind string) http.Header { return http.Header{"Content-Type": {kind}} }

var (
	asJSON   = header("application/json")
	asEvents = header("text/event-stream; charset=utf-8")
	asFrames = header("application/vnd.amazon.eventstream")
)

const chatStream = `data: {"choices":[{"index":0,"delta":{"content":"Hi"}}],"usage":null}` + "\n\n" +
	`data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}` + "\n\n" +
	"data: [DONE]\n\n"

const messageStart = "event: message_start\n" + `data: {"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":25,` +
	`"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}}` + "\n\n"

const messageDelta = "event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},` +
	`"usage":{"input_tokens":null,"output_tokens":15}}` + "\n\n"

const lastChunk = `{"type":"message_stop","amazon-bedrock-invocationMetrics":{"inputTokenCount":13,"outputTokenCount":178,` +
	`"cacheReadInputTokenCount":21408,"cacheWriteInputTokenCount":4384}}`

var vectors = []vector{
	{
		"chat", asJSON, `{"object":"chat.completion","model":"gpt-5-2025-08-07","usage":{"prompt_tokens":1200,"completion_tokens":300,` +
			`"total_tokens":1500,"prompt_tokens_details":{"cached_tokens":1024},"completion_tokens_details":{"reasoning_tokens":128}}}`,
		"1200 1024 - 300",
	},
	{"chat stream", asEvents, chatStream, "9 - - 2"},
	{"usage next to choices", asEvents, `data: {"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":16111,"completion_tokens":2,` +
		`"prompt_tokens_details":{"cached_tokens":15872}}}` + "\n\n", "16111 15872 - 2"},
	{"chat stream without usage", asEvents, `data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}` + "\n\ndata: [DONE]\n\n", "- - - -"},
	{"Azure's first event", asEvents, `data: {"choices":[],"prompt_filter_results":[{"prompt_index":0}]}` + "\n\n" + chatStream, "9 - - 2"},
	{"Responses", asJSON, `{"object":"response","status":"completed","usage":{"input_tokens":75,"input_tokens_details":{"cached_tokens":64},` +
		`"output_tokens":1186,"output_tokens_details":{"reasoning_tokens":1024},"total_tokens":1261}}`, "75 64 - 1186"},
	{
		"Responses stream", asEvents, "event: response.completed\n" +
			`data: {"type":"response.completed","response":{"id":"resp_1","usage":{"input_tokens":75,"output_tokens":1186}}}` + "\n\n",
		"75 - - 1186",
	},
	{"Responses failed", asEvents, "event: response.failed\n" +
		`data: {"type":"response.failed","response":{"usage":null,"error":{"code":"rate_limit_exceeded",` +
		`"message":"... Please try again in 11.054s."}}}` + "\n\n", "- - - -"},
	{"Messages", asJSON, `{"type":"message","usage":{"input_tokens":13,"cache_creation_input_tokens":4384,"cache_read_input_tokens":21408,` +
		`"output_tokens":178}}`, "25805 21408 4384 178"},
	{"Messages stream", asEvents, messageStart + messageDelta, "25 0 0 15"},
	{"Messages cut off", asEvents, messageStart + textDeltas(400), "25 0 0 1"},
	{"Messages overloaded", asEvents, "event: error\n" +
		`data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}` + "\n\n", "- - - -"},
	{
		"Gemini stream", asEvents,
		`data: {"candidates":[{"content":{"parts":[{"text":"a"}]}}],"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":3}}` + "\n\n" +
			`data: {"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":12,"thoughtsTokenCount":40,"totalTokenCount":60}}` + "\n\n",
		"8 - - 52",
	},
	{"Gemini array", asJSON, `[{"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":3}},` + "\n" +
		`{"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":12}}]`, "8 - - 12"},
	{
		"Converse", asJSON,
		`{"usage":{"inputTokens":30,"outputTokens":9,"totalTokens":39,"cacheReadInputTokens":2,"cacheWriteInputTokens":5}}`, "37 2 5 9",
	},
	{"Converse stream", asFrames, frame("metadata",
		`{"metrics":{"latencyMs":900},"usage":{"inputTokens":12,"outputTokens":7,"totalTokens":19}}`), "12 - - 7"},
	{"Converse stream cut off", asFrames, frame("metadata", `{"usage":{"inputTokens":12,"outputTokens":7}}`)[:60], "- - - -"},
	{
		"Invoke stream", asFrames, frame("chunk", `{"bytes":"`+base64.StdEncoding.EncodeToString([]byte(lastChunk))+`"}`),
		"25805 21408 4384 178",
	},
	{"embeddings", asJSON, `{"object":"list","usage":{"prompt_tokens":8,"total_tokens":8}}`, "8 - - 0"},
	{"transcription", asJSON, `{"text":"...","usage":{"type":"duration","seconds":9}}`, "- - - -"},
	{
		"usage in the content", asJSON,
		`{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":999999"}}],"text":"\"usage\":{\"prompt_tokens\":999999"}`, "- - - -",
	},
	{"gzip", http.Header{"Content-Type": {"text/event-stream"}, "Content-Encoding": {"gzip"}}, zipped("\ufeff: ping\r\n\r\n" +
		strings.ReplaceAll(strings.ReplaceAll(chatStream, "data: [DONE]", ": ping\n\ndata: [DONE]"), "\n", "\r\n")), "9 - - 2"},
	{"Gemini with tools", asJSON, `{"usageMetadata":{"promptTokenCount":100,"toolUsePromptTokenCount":50,"cachedContentTokenCount":20,` +
		`"candidatesTokenCount":12}}`, "150 20 - 12"},
	{
		"images", asJSON, `{"created":1,"data":[{"b64_json":"AAAA"}],"usage":{"input_tokens":50,"output_tokens":1000,"total_tokens":1050}}`,
		"50 - - 1000",
	},
	{
		"transcription in tokens", asJSON, `{"text":"...","usage":{"type":"tokens","input_tokens":14,"output_tokens":45,"total_tokens":59}}`,
		"14 - - 45",
	},
}

// textDeltas is a stream of pieces of text, of size bytes in all.
func textDeltas(size int) string {
	var b strings.Builder
	for range size / 40 {
		fmt.Fprintf(&b,
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"+
				"\"delta\":{\"type\":\"text_delta\",\"text\":%q}}\n\n", strings.Repeat("x", 40))
	}
	return b.String()
}

// frame returns a message of an Amazon event stream.
func frame(event, payload string) string {
	message := eventstream.Message{Payload: []byte(payload)}
	message.Headers.Set(":message-type", eventstream.StringValue("event"))
	message.Headers.Set(":event-type", eventstream.StringValue(event))
	return encoded(message)
}

func encoded(message eventstream.Message) string {
	var b bytes.Buffer
	if err := eventstream.NewEncoder().Encode(&b, message); err != nil {
		panic(err)
	}
	return b.String()
}

func zipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.String()
}

func said(u usage.Usage) string {
	var parts []string
	for _, c := range []struct {
		n     int64
		known bool
	}{{u.Input.N, u.Input.Known}, {u.Cached.N, u.Cached.Known}, {u.Written.N, u.Written.Known}, {u.Output.N, u.Output.Known}} {
		if !c.known {
			parts = append(parts, "-")
			continue
		}
		parts = append(parts, fmt.Sprint(c.n))
	}
	return strings.Join(parts, " ")
}

// meter reads a body in pieces of the given size.
func meter(t *testing.T, v vector, size int) *usage.Meter {
	t.Helper()
	m := usage.NewMeter(v.header)
	t.Cleanup(m.End)
	for body := []byte(v.body); len(body) > 0; {
		piece := body[:min(size, len(body))]
		if n, err := m.Write(piece); n != len(piece) || err != nil {
			t.Fatalf("Write of %d bytes: %d, %v", len(piece), n, err)
		}
		body = body[len(piece):]
	}
	return m
}

func TestMeter_ReadsUsage(t *testing.T) {
	for i, v := range vectors {
		for _, size := range []int{len(v.body), 1, 7} {
			t.Run(fmt.Sprintf("V%d %s in pieces of %d", i+1, v.name, size), func(t *testing.T) {
				m := meter(t, v, size)
				if got := said(m.Said().Usage); got != v.want {
					t.Errorf("before End: %s, want %s", got, v.want)
				}
				m.End()
				if got := said(m.Said().Usage); got != v.want {
					t.Errorf("after End: %s, want %s", got, v.want)
				}
			})
		}
	}
}
