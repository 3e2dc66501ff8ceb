package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/quotad/quotad/client/gateway/dialect"
)

// body is a request's body in memory, so that the call can wait and be sent again; nil: it has none, or is streamed.
type body struct {
	data []byte
	// header is how it is packed.
	encoding string
}

func (b *body) bytes() []byte {
	if b == nil {
		return nil
	}
	return b.data
}

// isJSON reports whether a body is JSON by its type. Tools that say nothing send JSON.
func isJSON(header http.Header) bool {
	kind, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return kind == "" || kind == "application/json" || strings.HasSuffix(kind, "+json") || strings.HasPrefix(kind, "text/")
}

// errBodyTooLarge and errMemory say why a body was not read.
var (
	errBodyTooLarge = errors.New("the body is larger than limits.body")
	errMemory       = errors.New("all buffered bodies together would be larger than limits.memory")
)

// readBody reads a JSON body into memory. Other bodies are streamed and never sent again.
func (c *call) readBody(r *http.Request) error {
	if r.Body == nil || r.Body == http.NoBody || !isJSON(r.Header) {
		return nil
	}
	limits := c.state.config.Limits
	if r.ContentLength > limits.Body {
		return errBodyTooLarge
	}
	keep := accountant{gateway: c.gateway, most: limits.Memory}
	buffer := bytes.NewBuffer(make([]byte, 0, max(0, min(r.ContentLength, 1<<20))+bytes.MinRead))
	_, err := io.Copy(io.MultiWriter(&keep, buffer), io.LimitReader(r.Body, limits.Body+1))
	if err == nil && int64(buffer.Len()) > limits.Body {
		err = errBodyTooLarge
	}
	if err != nil {
		keep.release()
		return err
	}
	c.body = &body{data: buffer.Bytes(), encoding: r.Header.Get("Content-Encoding")}
	c.release = keep.release
	return nil
}

// accountant counts bytes of a body in what all bodies may take.
type accountant struct {
	gateway *Gateway
	most    int64
	taken   int64
}

// Write implements io.Writer.
func (a *accountant) Write(p []byte) (int, error) {
	n := int64(len(p))
	if a.gateway.buffered.Add(n) > a.most {
		a.gateway.buffered.Add(-n)
		return 0, errMemory
	}
	a.taken += n
	return len(p), nil
}

func (a *accountant) release() {
	a.gateway.buffered.Add(-a.taken)
	a.taken = 0
}

// bodyRefusal says why a body was not taken.
func bodyRefusal(err error) dialect.Refusal {
	switch {
	case errors.Is(err, errBodyTooLarge):
		return dialect.Refusal{Status: http.StatusRequestEntityTooLarge, Message: "quotad: " + err.Error(), Final: true}
	case errors.Is(err, errMemory):
		return dialect.Refusal{Status: http.StatusServiceUnavailable, Message: "quotad: " + err.Error(), RetryAfter: retrySoon}
	}
	return dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: the body was not received: " + err.Error()}
}
