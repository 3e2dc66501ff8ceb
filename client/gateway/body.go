package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/internal/unpack"
)

// body is a request's body in memory, so that the call can wait and be sent again.
type body struct{ data []byte }

func (b *body) bytes() []byte {
	if b == nil {
		return nil
	}
	return b.data
}

// mediaType returns the type of a body in lower case, without its parameters.
func mediaType(header http.Header) string {
	kind, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

// isJSON reports whether a body is JSON by its type. Tools that declare no type send JSON.
func isJSON(header http.Header) bool {
	kind := mediaType(header)
	return kind == "" || kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// isText reports whether a body is text by its type. It may still be JSON: curl -d declares a form.
func isText(header http.Header) bool {
	kind := mediaType(header)
	return strings.HasPrefix(kind, "text/") || kind == "application/x-www-form-urlencoded"
}

// maxBlank is how many bytes of white space may precede JSON in a text body. A body with more is treated as JSON, so that white space
// hides nothing from the scan.
const maxBlank = 512

// beginsAsJSON reports whether a text body is JSON by its beginning, and returns the whole body to read. It waits for the first byte
// that is not white space.
func beginsAsJSON(body io.ReadCloser) (io.ReadCloser, bool) {
	in := bufio.NewReaderSize(body, maxBlank)
	whole := splice{in, body}
	for n := 1; n <= maxBlank; n++ {
		start, err := in.Peek(n)
		if err != nil {
			return whole, false
		}
		switch start[n-1] {
		case ' ', '\t', '\r', '\n':
		case '{', '[', 0xef: // the first byte of a byte order mark
			return whole, true
		default:
			return whole, false
		}
	}
	return whole, true
}

// errBodyTooLarge and errMemory are reasons for not reading a body.
var (
	errBodyTooLarge = errors.New("the body is larger than limits.body")
	errMemory       = errors.New("all buffered bodies together would be larger than limits.memory")
)

// readBody reads JSON bodies into memory, and all bodies that determine the call's draws, whatever their declared type: a provider may
// read them as JSON all the same. Other bodies are streamed and never sent again. Of multipart requests to models, it reads the
// beginning for the model's name.
func (c *call) readBody(r *http.Request) error {
	if err := c.takeBody(r); err != nil {
		return err
	}
	c.record(func(o *outcome) { o.received = time.Now() })
	return c.read()
}

// drawsByBody reports whether the body determines what the call draws on.
func (c *call) drawsByBody() bool {
	return c.op.Generates() || c.upstream.dialect == dialect.GitHub && estimate.CanonicalPath(c.path) == "/graphql"
}

func (c *call) takeBody(r *http.Request) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	limits := c.state.config.Limits
	keep := accountant{gateway: c.gateway, most: limits.Memory}
	c.release = keep.release
	whole := isJSON(r.Header)
	switch {
	case whole && c.apart != nil:
		whole = false // an upload is content, whatever its type, and may exceed the bound of calls
	case whole:
	case strings.HasPrefix(mediaType(r.Header), "multipart/") && unpack.Encoding(r.Header) == "":
		if !c.drawsByBody() {
			return nil
		}
		r.Body, whole = beginsAsJSON(r.Body)
	case c.drawsByBody():
		whole = true // a body that is not JSON counts by its bytes
	case isText(r.Header):
		r.Body, whole = beginsAsJSON(r.Body)
	}
	if !whole {
		if !c.op.Generates() {
			return nil
		}
		head := make([]byte, estimate.MultipartHead)
		n, err := io.ReadFull(io.TeeReader(r.Body, &keep), head)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		c.streamed = head[:n]
		r.Body = splice{io.MultiReader(bytes.NewReader(c.streamed), r.Body), r.Body}
		return nil
	}
	if r.ContentLength > limits.Body {
		return errBodyTooLarge
	}
	buffer := bytes.NewBuffer(make([]byte, 0, max(0, min(r.ContentLength, 1<<20))+bytes.MinRead))
	// Not io.Copy, which allocates 32 KiB for each body.
	_, err := buffer.ReadFrom(io.TeeReader(io.LimitReader(r.Body, limits.Body+1), &keep))
	if err == nil && int64(buffer.Len()) > limits.Body {
		err = errBodyTooLarge
	}
	if err != nil {
		return err
	}
	c.body = &body{data: buffer.Bytes()}
	return nil
}

// splice reads from one value and closes another.
type splice struct {
	io.Reader
	io.Closer
}

// accountant counts a body's bytes against the memory for all bodies.
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

// bodyRefusal returns the refusal for a body that was not accepted.
func bodyRefusal(err error) dialect.Refusal {
	refusal := dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: could not receive the body: " + err.Error()}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		refusal = dialect.Refusal{Status: http.StatusRequestTimeout, Message: "quotad: the body did not arrive"}
	case errors.Is(err, errBodyTooLarge):
		refusal = dialect.Refusal{Status: http.StatusRequestEntityTooLarge, Message: "quotad: " + err.Error(), Final: true}
	case errors.Is(err, errRepeated):
		refusal.Message, refusal.Final = "quotad: "+err.Error(), true
	case errors.Is(err, errEncoding):
		refusal = dialect.Refusal{Status: http.StatusUnsupportedMediaType, Message: "quotad: " + err.Error(), Final: true}
	case errors.Is(err, errMemory):
		refusal = dialect.Refusal{Status: http.StatusServiceUnavailable, Message: "quotad: " + err.Error(), RetryAfter: retrySoon}
		refusal.Reason = "BODIES_FULL"
	}
	return refusal
}
