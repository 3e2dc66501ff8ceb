package usage

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream/eventstreamapi"
)

// Meter reads the usage that one answer states. It is an io.Writer for a copy of the body, and safe for concurrent use.
type Meter struct {
	mu       sync.Mutex
	body     io.Writer
	inflater *inflater
	document *document
	said     Said
	ended    bool
}

// NewMeter returns a Meter for an answer with this header. Call End when its body has ended.
func NewMeter(header http.Header) *Meter {
	m := &Meter{document: newDocument()}
	m.readHeader(header)
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	switch major, _, _ := strings.Cut(kind, "/"); {
	case err == nil && kind == "application/vnd.amazon.eventstream":
		m.body = &frames{take: m.takeMessage, skip: m.skip, decoder: eventstream.NewDecoder()}
	case major == "image" || major == "audio" || major == "video" || kind == "application/octet-stream":
		m.body = io.Discard
	default:
		m.body = &text{meter: m}
	}
	switch strings.ToLower(header.Get("Content-Encoding")) {
	case "gzip", "x-gzip":
		m.inflater = newInflater(m.body)
		m.body = m.inflater
	case "", "identity":
	default:
		m.body = io.Discard
	}
	return m
}

// readHeader reads the counts in Bedrock's headers.
func (m *Meter) readHeader(header http.Header) {
	for name, f := range map[string]field{
		"X-Amzn-Bedrock-Input-Token-Count": metricsInput, "X-Amzn-Bedrock-Output-Token-Count": metricsOutput,
		"X-Amzn-Bedrock-Cache-Read-Input-Token-Count": metricsRead, "X-Amzn-Bedrock-Cache-Write-Input-Token-Count": metricsWrite,
	} {
		if n, err := strconv.ParseInt(header.Get(name), 10, 64); err == nil && n >= 0 {
			m.document.values.set(f, n)
		}
	}
}

// Write reads more of the body. It always returns len(p) and no error.
func (m *Meter) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		_, _ = m.body.Write(p)
	}
	return len(p), nil
}

// End ends the body and frees the Meter's resources. It is idempotent.
func (m *Meter) End() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return
	}
	m.ended = true
	if m.inflater != nil {
		_ = m.inflater.Close()
	}
	m.document.end(&m.said)
}

// Said returns the information in the answer so far.
func (m *Meter) Said() Said {
	m.mu.Lock()
	defer m.mu.Unlock()
	said := m.said
	if !m.ended {
		m.document.tell(&said)
	}
	said.Usage, said.Text = m.document.values.usage(), m.document.text
	return said
}

func (m *Meter) skip() { m.said.Skipped++ }

// takeData reads the data of a server-sent event.
func (m *Meter) takeData(data []byte) {
	if string(data) == "[DONE]" {
		m.said.Last = true
		return
	}
	_, _ = m.document.Write(data)
	m.document.end(&m.said)
}

// takeMessage reads a message of an Amazon event stream.
func (m *Meter) takeMessage(message eventstream.Message) {
	header := func(name string) string {
		value := message.Headers.Get(name)
		if value == nil {
			return ""
		}
		return value.String()
	}
	switch header(eventstreamapi.MessageTypeHeader) {
	case eventstreamapi.ExceptionMessageType:
		m.takeException(header(eventstreamapi.ExceptionTypeHeader), message.Payload)
	case eventstreamapi.ErrorMessageType:
		m.said.Failure = &Failure{Type: header(eventstreamapi.ErrorCodeHeader), Message: header(eventstreamapi.ErrorMessageHeader)}
	default:
		m.takePayload(header(eventstreamapi.EventTypeHeader), message.Payload)
	}
}

func (m *Meter) takeException(kind string, payload []byte) {
	_, _ = m.document.Write(payload)
	m.said.Failure = &Failure{Type: kind, Message: m.document.string(rootMessage), Body: bytes.Clone(payload)}
	m.document.end(&m.said)
}

func (m *Meter) takePayload(event string, payload []byte) {
	_, _ = m.document.Write(payload)
	inner := m.document.string(chunk)
	m.document.end(&m.said)
	switch event {
	case "messageStop":
		m.said.Last = true
	case "chunk":
		if data, err := base64.StdEncoding.DecodeString(inner); err == nil {
			m.takeData(data)
		}
	}
}

// text reads a body that is JSON or server-sent events. It decides by the first byte, since some providers' headers are wrong.
type text struct {
	meter *Meter
	to    io.Writer
}

// Write implements io.Writer.
func (t *text) Write(p []byte) (int, error) {
	if t.to == nil {
		switch start := bytes.TrimLeft(p, " \t\r\n"); {
		case len(start) == 0:
			return len(p), nil
		case start[0] == '{' || start[0] == '[':
			t.to = t.meter.document
		default:
			t.to = &events{take: t.meter.takeData, skip: t.meter.skip}
		}
	}
	return t.to.Write(p)
}
