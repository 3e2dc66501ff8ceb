package rpc

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"
)

// Requests are decompressed here and not by connect, which neither bounds what all of them decompress to at once nor tells how much it
// was. Here each request takes room in the budget of request bytes before it is decompressed, and its caller is charged, in every
// protocol alike.

// gzipName is the only compression.
const gzipName = "gzip"

// packedBody returns the header that names the compression of a body, and whether each of its messages is compressed separately.
func packedBody(contentType string) (header string, enveloped bool) {
	switch {
	case strings.HasPrefix(contentType, "application/grpc"):
		return "Grpc-Encoding", true
	case strings.HasPrefix(contentType, "application/connect+"):
		return "Connect-Content-Encoding", true
	}
	return "Content-Encoding", false
}

// unpacked returns a request without compression: compressed messages are decompressed as they are read, up to longest bytes each.
func unpacked(r *http.Request, room *requestBytes, longest int64) (*http.Request, error) {
	if r.Method == http.MethodGet {
		return unpackedQuery(r, room, longest)
	}
	header, enveloped := packedBody(r.Header.Get("Content-Type"))
	if r.Header.Get(header) != gzipName {
		return r, nil
	}
	r.Header.Del(header)
	if enveloped {
		r.Body = &unpackedEnvelopes{Closer: r.Body, from: r.Body, room: room, longest: longest}
	} else {
		r.Body = &unpackedBody{Closer: r.Body, unpacker: unpacker{from: r.Body, room: room, longest: longest}}
	}
	return r, nil
}

// unpackedQuery is unpacked for a message in the query.
func unpackedQuery(r *http.Request, room *requestBytes, longest int64) (*http.Request, error) {
	size := len(r.URL.RawQuery)
	if err := room.require(int64(size)); err != nil {
		return nil, err
	}
	room.use(size)
	query := r.URL.Query()
	if query.Get("compression") != gzipName {
		return r, nil
	}
	packed := []byte(query.Get("message"))
	if query.Get("base64") == "1" {
		var err error
		if packed, err = base64.RawURLEncoding.DecodeString(strings.TrimRight(query.Get("message"), "=")); err != nil {
			return nil, invalid("message", "is not base64", "use the alphabet for URLs (- and _)")
		}
	}
	message, err := io.ReadAll(&unpacker{from: bytes.NewReader(packed), room: room, longest: longest})
	if err != nil {
		return nil, err
	}
	query.Set("message", base64.RawURLEncoding.EncodeToString(message))
	query.Set("base64", "1")
	query.Del("compression")
	r = r.Clone(r.Context())
	r.URL.RawQuery = query.Encode()
	return r, nil
}

// unpacker decompresses one message. It is ready once from, room and longest are set.
type unpacker struct {
	from    io.Reader
	room    *requestBytes
	longest int64

	zip  *gzip.Reader
	size int64
}

// Read implements io.Reader. Its errors are the API's.
func (u *unpacker) Read(p []byte) (n int, err error) {
	if u.zip == nil {
		if err := u.room.require(unpackerBytes / perByte); err != nil {
			return 0, err
		}
		if u.zip, err = gzip.NewReader(u.from); err != nil {
			return 0, unpackError(err, "is not gzip", "omit Content-Encoding, or compress the body with gzip")
		}
	}
	p = p[:min(len(p), readStep)]
	if err := u.room.require(int64(len(p)) + unpackerBytes/perByte); err != nil {
		return 0, err
	}
	n, err = u.zip.Read(p)
	u.room.use(n)
	if u.size += int64(n); u.size > u.longest {
		return 0, tooLargeError(fmt.Sprintf("the body has more than %d bytes after decompression", u.longest))
	}
	if err != nil {
		u.room.trim()
		return n, unpackError(err, "cannot be decompressed: "+err.Error(), "send the request again")
	}
	return n, nil
}

// unpackError makes the error of a message that cannot be decompressed. The end of the body is not an error, and errors of the body
// itself are typed already.
func unpackError(err error, what, hint string) error {
	if _, ok := errors.AsType[*connect.Error](err); ok || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return invalid("body", what, hint)
}

// unpackedBody is a body of one compressed message.
type unpackedBody struct {
	io.Closer
	unpacker
}

// envelopeHead is the length of the head before each message of a body with many: flags, and a length of four bytes.
const (
	envelopeHead   = 5
	envelopePacked = 1
)

// unpackedEnvelopes is a body of messages, each in an envelope that says whether it is compressed.
type unpackedEnvelopes struct {
	io.Closer
	from    io.Reader
	room    *requestBytes
	longest int64

	// ready is data that was decompressed and not read, plain how many bytes follow it that are not compressed.
	ready bytes.Buffer
	plain int64
}

// Read implements io.Reader.
func (e *unpackedEnvelopes) Read(p []byte) (int, error) {
	for e.ready.Len() == 0 && e.plain == 0 {
		if err := e.next(); err != nil {
			return 0, err
		}
	}
	if e.ready.Len() > 0 {
		return e.ready.Read(p)
	}
	n, err := e.from.Read(p[:min(int64(len(p)), e.plain)])
	e.plain -= int64(n)
	return n, err
}

// next reads the head of the next envelope, and decompresses a compressed message.
func (e *unpackedEnvelopes) next() error {
	e.ready = bytes.Buffer{} // the memory of one message is not kept for the next
	var head [envelopeHead]byte
	if _, err := io.ReadFull(e.from, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return invalid("body", "ended too early", "send the request again")
		}
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if head[0]&envelopePacked == 0 || size == 0 {
		_, _ = e.ready.Write(head[:])
		e.plain = size
		return nil
	}
	head[0] &^= envelopePacked
	_, _ = e.ready.Write(head[:])
	packed := &io.LimitedReader{R: e.from, N: size}
	if _, err := e.ready.ReadFrom(&unpacker{from: packed, room: e.room, longest: e.longest}); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, packed); err != nil { // more is left after gzip's end only if the length was wrong
		return err
	}
	whole := e.ready.Bytes()
	binary.BigEndian.PutUint32(whole[1:], uint32(len(whole)-envelopeHead)) //nolint:gosec // at most longest
	return nil
}
