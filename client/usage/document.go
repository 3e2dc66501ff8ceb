package usage

import (
	"encoding/json"

	"github.com/quotad/quotad/client/internal/jsonscan"
	"github.com/quotad/quotad/rpc/signals"
)

const (
	// maxString is how much of a string is kept, in bytes; maxDepth bounds the depth of values that are read.
	maxString = 4 << 10
	maxDepth  = 16
)

// document reads one JSON document after the other: a body, or the events of a stream.
type document struct {
	json   *jsonscan.Scanner
	values values
	// strings are those of the current document, text is the bytes of output in all documents.
	strings [fields - counts]string
	text    int64

	depth int
	// places are the nodes of the open values, nil for values that are not read. at is the node of the next value.
	places [maxDepth]*node
	at     *node
	held   []byte
	// head is the beginning of the document, for errors.
	head []byte
	// failed: the document has an error.
	failed bool
}

func newDocument() *document {
	d := &document{at: root}
	d.json = jsonscan.New((*handler)(d))
	return d
}

// Write reads more of the document.
func (d *document) Write(p []byte) (int, error) {
	d.head = append(d.head, p[:min(len(p), signals.MaxBody-len(d.head))]...)
	return d.json.Write(p)
}

// end ends the document, adds its information to said, and prepares for the next one.
func (d *document) end(said *Said) {
	d.json.Finish()
	d.tell(said)
	d.json.Reset()
	d.depth, d.at, d.failed = 0, root, false
	d.strings = [fields - counts]string{}
	d.held, d.head = d.held[:0], d.head[:0]
}

// tell adds the document's information other than counts.
func (d *document) tell(said *Said) {
	for _, s := range []struct {
		to *string
		f  field
	}{{&said.ID, answerID}, {&said.Conversation, conversationID}, {&said.Model, modelName}, {&said.Tier, serviceTier}} {
		if text := d.string(s.f); text != "" {
			*s.to = text
		}
	}
	if failure := d.failure(); failure != nil {
		said.Failure = failure
	}
	switch d.string(eventType) {
	case "message_stop", "response.completed", "response.incomplete", "response.failed":
		said.Last = true
	}
}

func (d *document) string(f field) string { return d.strings[f-counts] }

// handler has the methods for the scanner.
type handler document

// Key implements jsonscan.Handler.
func (h *handler) Key(name []byte) {
	h.at = nil
	if place := h.place(); place != nil {
		h.at = place.members[string(name)]
	}
}

// place returns the node of the innermost open value.
func (h *handler) place() *node {
	if h.depth == 0 || h.depth > maxDepth {
		return nil
	}
	return h.places[h.depth-1]
}

// Open implements jsonscan.Handler.
func (h *handler) Open(array bool) {
	here := h.at
	if array && here != nil && !here.array {
		here = nil
	}
	if here == errorNode && !array {
		h.failed = true
	}
	h.depth++
	if h.depth <= maxDepth {
		h.places[h.depth-1] = here
	}
	h.at = nil
	if array {
		h.at = h.place()
	}
}

// Close implements jsonscan.Handler.
func (h *handler) Close() {
	h.depth--
	h.endValue()
}

// endValue prepares for the next element of an array; in an object, a key comes first.
func (h *handler) endValue() {
	if place := h.place(); place != nil && place.array {
		h.at = place
	}
}

// Text implements jsonscan.Handler.
func (h *handler) Text(piece []byte) {
	if h.at == nil || h.at.field <= counts {
		return
	}
	if h.at.field == visible {
		h.text += int64(len(piece))
		return
	}
	most := maxString
	if h.at.field == chunk {
		most = maxEvent
	}
	h.held = append(h.held, piece[:min(len(piece), most-len(h.held))]...)
}

// TextEnd implements jsonscan.Handler.
func (h *handler) TextEnd() {
	if h.at != nil && h.at.field > counts && h.at.field != visible {
		h.strings[h.at.field-counts] = string(h.held)
	}
	h.held = h.held[:0]
	h.endValue()
}

// Literal implements jsonscan.Handler.
func (h *handler) Literal(text []byte) {
	if h.at != nil {
		switch f := h.at.field; {
		case f > noField && f < counts:
			if n, ok := whole(text); ok {
				h.values.set(f, n)
			}
		case f == errorCode || f == rootCode:
			h.strings[f-counts] = string(text)
		}
	}
	h.endValue()
}

// whole parses a whole number of at least 0, capped at MaxCount.
func whole(text []byte) (int64, bool) {
	var n int64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int64(c-'0'), MaxCount)
	}
	return n, true
}

// failure returns the error of the document; nil if it has none.
func (d *document) failure() *Failure {
	f := &Failure{Type: d.string(errorType), Code: d.string(errorCode), Message: d.string(errorMessage)}
	switch {
	case d.failed:
		if f.Type == "" {
			f.Type = d.string(errorStatus)
		}
	case d.string(eventType) == "error":
		f.Code, f.Message = d.string(rootCode), d.string(rootMessage)
	default:
		return nil
	}
	f.Body = d.errorBody(f)
	return f
}

// errorBody returns an error in the form of a refusal's body.
func (d *document) errorBody(f *Failure) []byte {
	var whole struct {
		Error    json.RawMessage `json:"error"`
		Response struct {
			Error json.RawMessage `json:"error"`
		} `json:"response"`
	}
	body := map[string]any{"error": map[string]string{"type": f.Type, "code": f.Code, "message": f.Message}}
	switch err := json.Unmarshal(d.head, &whole); {
	case err == nil && len(whole.Error) > 0:
		return append([]byte(nil), d.head...)
	case err == nil && len(whole.Response.Error) > 0:
		body["error"] = whole.Response.Error
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil
	}
	return text
}
