package gateway

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strings"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/internal/unpack"
)

// A chat stream of OpenAI states its use only if stream_options.include_usage is set. If a settlement needs the use, the gateway sets
// that, and withholds exactly the one event that results: clients that did not request it fail on its empty choices.

// asksUsage reports whether the gateway has to request usage itself.
func (c *call) asksUsage() bool {
	mode := c.upstream.config.StreamUsage
	if mode == "off" || c.ask == nil || !c.ask.Stream || c.ask.StreamOptions || c.body == nil || unpack.Encoding(c.header) != "" {
		return false
	}
	chat := strings.HasSuffix(estimate.CanonicalPath(c.path), "/completions")
	if !chat || mode == "auto" && c.op.Dialect != dialect.OpenAI {
		return false
	}
	if mode == "on" {
		return true
	}
	for _, d := range c.draws {
		if d.part == partCost || isTokens(d.part) && d.quota.Returns {
			return true
		}
	}
	return false
}

// injectUsage adds the member to the body to send.
func (c *call) injectUsage() {
	at := bytes.IndexByte(c.body.data, '{')
	if at < 0 {
		return
	}
	member := `"stream_options":{"include_usage":true}`
	if rest := bytes.TrimLeft(c.body.data[at+1:], " \t\r\n"); len(rest) > 0 && rest[0] != '}' {
		member += ","
	}
	out := make([]byte, 0, len(c.body.data)+len(member))
	out = append(out, c.body.data[:at+1]...)
	out = append(out, member...)
	c.body.data = append(out, c.body.data[at+1:]...)
	c.injected = true
}

// maxEvent is the longest event that is parsed, in bytes; a longer one passes.
const maxEvent = 1 << 20

// usageFilter passes a stream of server-sent events and withholds events with usage alone. An event passes once it is complete, which
// is also when a client can first use it.
type usageFilter struct {
	in  []byte
	out bytes.Buffer
	// event is the current event so far; passing: it is too long to parse.
	event   []byte
	passing bool
	// line is the length of the current line; after: the last byte was CR.
	line  int
	after bool
	// withheld: the last event was withheld.
	withheld bool
	err      error
}

// filterFor returns a filter for an answer; nil: it is not a readable stream.
func filterFor(header http.Header) *usageFilter {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || kind != "text/event-stream" || unpack.Encoding(header) != "" {
		return nil
	}
	header.Del("Content-Length")
	return &usageFilter{in: make([]byte, 32<<10)}
}

// read reads from a stream until there is something to pass.
func (f *usageFilter) read(p []byte, from func([]byte) (int, error)) (int, error) {
	for f.out.Len() == 0 {
		if f.err != nil {
			return 0, f.err
		}
		n, err := from(f.in)
		f.take(f.in[:n])
		if err != nil {
			// The rest is an incomplete event: it passes unchanged.
			f.out.Write(f.event)
			f.event, f.err = nil, err
		}
	}
	return f.out.Read(p)
}

// take reads more of the stream.
func (f *usageFilter) take(p []byte) {
	for _, b := range p {
		if f.passing {
			f.out.WriteByte(b)
		} else {
			f.event = append(f.event, b)
		}
		ended := false
		switch {
		case b == '\n' && f.after:
			f.after = false // the second byte of a line ending
			f.joinEnd()
			continue
		case b == '\n' || b == '\r':
			ended = f.line == 0
			f.line = 0
		default:
			f.line++
		}
		f.after = b == '\r'
		if ended {
			f.finish()
		} else if !f.passing && len(f.event) > maxEvent {
			f.out.Write(f.event)
			f.event, f.passing = f.event[:0], true
		}
	}
}

// joinEnd passes the LF of a CR LF whose event has already passed.
func (f *usageFilter) joinEnd() {
	if !f.passing && len(f.event) == 1 {
		if !f.withheld {
			f.out.WriteByte('\n')
		}
		f.event = f.event[:0]
	}
}

// finish passes or withholds a complete event.
func (f *usageFilter) finish() {
	f.withheld = !f.passing && onlyUsage(f.event)
	if !f.withheld {
		f.out.Write(f.event)
	}
	f.event, f.passing = f.event[:0], false
}

// onlyUsage reports whether an event has usage alone: no choices, and an object as usage.
func onlyUsage(event []byte) bool {
	if !bytes.Contains(event, []byte(`"usage"`)) {
		return false
	}
	var data []byte
	for line := range bytes.FieldsFuncSeq(event, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if value, found := bytes.CutPrefix(line, []byte("data:")); found {
			data = append(data, value...)
		}
	}
	var chunk struct {
		Choices []json.RawMessage `json:"choices"`
		Usage   json.RawMessage   `json:"usage"`
	}
	if json.Unmarshal(data, &chunk) != nil || chunk.Choices == nil || len(chunk.Choices) > 0 {
		return false
	}
	usage := bytes.TrimSpace(chunk.Usage)
	return len(usage) > 0 && usage[0] == '{'
}
