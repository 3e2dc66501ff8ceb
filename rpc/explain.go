package rpc

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/quotad/quotad/rpc/quotav1"
)

// jsonType is the content type of JSON, also of Connect's errors.
const jsonType = "application/json"

// plainError is an error of Connect in JSON, with the ErrorInfo in one place for callers without protobuf.
type plainError struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
	// Error is the ErrorInfo. Connect has it only among the details, under the name debug.
	Error   json.RawMessage   `json:"error"`
	Details []json.RawMessage `json:"details,omitempty"`
}

// explain puts an error's ErrorInfo where callers without protobuf find it. Errors that connect makes itself have none: they get one.
// Other bodies stay as they are.
func explain(body []byte) []byte {
	var e plainError
	if json.Unmarshal(body, &e) != nil || e.Code == "" || e.Error != nil {
		return body
	}
	for _, detail := range e.Details {
		var info struct {
			Type  string          `json:"type"`
			Debug json.RawMessage `json:"debug"`
		}
		if json.Unmarshal(detail, &info) == nil && info.Type == "quota.v1.ErrorInfo" && info.Debug != nil {
			e.Error = info.Debug
		}
	}
	if e.Error == nil {
		e.Error = infoJSON(infoOfCode(e.Code))
	}
	explained, err := json.Marshal(e)
	if err != nil {
		return body
	}
	return explained
}

// infoOfCode returns the ErrorInfo of an error that connect made itself.
func infoOfCode(code string) *quotav1.ErrorInfo {
	info := &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_INTERNAL}
	switch code {
	case "invalid_argument", "unimplemented":
		info.Reason, info.NotAccepted, info.Hint = quotav1.Reason_REASON_INVALID, true, "docs/api.md describes the form of a call"
	case "canceled", "deadline_exceeded":
		info.Reason = quotav1.Reason_REASON_CANCELED
	}
	info.Outcome = outcomeOf(info)
	return info
}

// serveUnknown answers a path that the port does not serve: a call in JSON gets the form of every error.
func serveUnknown(w http.ResponseWriter, r *http.Request) {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != jsonType {
		http.NotFound(w, r)
		return
	}
	info := &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_INVALID, Hint: "docs/api.md lists the calls, such as /quota.v1.QuotaService/Reserve", NotAccepted: true,
	}
	info.Outcome = outcomeOf(info)
	body, err := json.Marshal(plainError{Code: "unimplemented", Message: "path: there is no such call here", Error: infoJSON(info)})
	if err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write(append(body, '\n'))
}

func infoJSON(info *quotav1.ErrorInfo) json.RawMessage {
	text, err := protojson.Marshal(info)
	if err != nil {
		return json.RawMessage("null") // cannot happen: hints are quotad's own, in UTF-8
	}
	return text
}

// unfit returns the body of a refusal that connect sends without one: of a content type or a method that a call does not support. It
// returns nil for other answers.
func (w *answerWriter) unfit(status int) []byte {
	header := w.Header()
	if header.Get("Content-Type") != "" || status != http.StatusUnsupportedMediaType && status != http.StatusMethodNotAllowed {
		return nil
	}
	e, info := plainError{Code: "invalid_argument"}, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_INVALID, NotAccepted: true}
	switch {
	case status == http.StatusMethodNotAllowed:
		e.Message, info.Hint = "method: not allowed for this call", "use "+header.Get("Allow")
	case header.Get("Accept-Post") == "":
		e.Message, info.Hint = "body: a GET must not have one", "put the message into the query, or send a POST"
	case !strings.Contains(header.Get("Accept-Post"), jsonType):
		info.Field, e.Message = "content-type", fmt.Sprintf("content-type: this call is a stream and cannot use %q", w.contentType)
		info.Hint = "use application/connect+json with Connect's envelopes; GET of this path also streams events: " + watchPath
	default:
		info.Field, e.Message = "content-type", fmt.Sprintf("content-type: %q is not supported", w.contentType)
		info.Hint = "send it with -H 'content-type: application/json'; a GET needs encoding=json and message in its query"
	}
	info.Outcome = outcomeOf(info)
	e.Error = infoJSON(info)
	body, err := json.Marshal(e)
	if err != nil {
		return nil
	}
	return body
}
