package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/quotad/quotad/rpc/signals"
)

// response returns the refusal in the provider's own form. Only the message text is quotad's.
func (e *RefusalError) response(request *http.Request, dialect signals.Dialect, holder string) *http.Response {
	closeBody(request)
	header := http.Header{
		"Content-Type":     {"application/json"},
		"X-Should-Retry":   {"false"},
		"X-Quotad-Refusal": {fmt.Sprintf("%s; quota=%q", e.Reason, e.Quota)},
	}
	if e.RetryAfter >= 0 {
		header.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(e.RetryAfter.Seconds())), 10))
		header.Set("Retry-After-Ms", strconv.FormatInt(e.RetryAfter.Milliseconds(), 10))
	}
	content, err := json.Marshal(e.body(dialect, holder, header))
	if err != nil {
		content = nil // never: only strings and numbers
	}
	return &http.Response{
		Status: "429 Too Many Requests", StatusCode: http.StatusTooManyRequests, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(content)), ContentLength: int64(len(content)), Request: request,
	}
}

// body returns the body in the provider's form and sets the headers that belong to it.
func (e *RefusalError) body(dialect signals.Dialect, holder string, header http.Header) any {
	type object = map[string]any
	text := fmt.Sprintf("%s is %s (quotad, holder %s).", e.Quota, e.Reason, holder)
	seconds := strconv.FormatFloat(max(e.RetryAfter.Seconds(), 0), 'f', -1, 64)
	waits := e.RetryAfter >= 0
	switch dialect.Name() {
	case signals.OpenAI.Name(), signals.Codex.Name(), signals.Azure.Name():
		if waits {
			text += fmt.Sprintf(" Please try again in %ss.", seconds)
		}
		kind := "requests"
		if strings.HasSuffix(e.Quota, "tokens") {
			kind = "tokens"
		}
		return object{"error": object{"message": "Rate limit reached: " + text, "type": kind, "param": nil, "code": "rate_limit_exceeded"}}
	case signals.Anthropic.Name():
		return object{"type": "error", "error": object{"type": "rate_limit_error", "message": text}}
	case signals.GitHub.Name():
		return object{
			"message":           "You have exceeded a rate limit: " + text,
			"documentation_url": "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api",
		}
	case signals.Gemini.Name():
		failure := object{"code": http.StatusTooManyRequests, "message": text, "status": "RESOURCE_EXHAUSTED"}
		if waits {
			failure["details"] = []object{{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": seconds + "s"}}
		}
		return object{"error": failure}
	case signals.Bedrock.Name():
		header.Set("X-Amzn-Errortype", "ThrottlingException")
		return object{"message": "Too many requests, please wait before trying again: " + text}
	}
	header.Set("Content-Type", "application/problem+json")
	return object{
		"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "quota exceeded",
		"violated-policies": []string{e.Quota}, "detail": text, "status": http.StatusTooManyRequests,
	}
}
