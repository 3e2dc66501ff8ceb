// Package unpack reads bodies whose Content-Encoding is gzip: callers that ask for it themselves get them from net/http as they came.
package unpack

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// Encoding returns how a body is packed, in lower case; empty: it is not.
func Encoding(header http.Header) string {
	encoding := strings.ToLower(strings.TrimSpace(strings.Join(header.Values("Content-Encoding"), ",")))
	if encoding == "identity" {
		return ""
	}
	return encoding
}

// Start returns the beginning of a body as plain bytes, up to most. A body that breaks off, or was not read to its end, counts as far as it
// can be unpacked. nil: it is packed in another way than gzip.
func Start(header http.Header, start []byte, most int64) []byte {
	switch Encoding(header) {
	case "":
		return start
	case "gzip", "x-gzip":
	default:
		return nil
	}
	in, err := gzip.NewReader(bytes.NewReader(start))
	if err != nil {
		return start // plain, whatever its header says
	}
	plain, _ := io.ReadAll(io.LimitReader(in, most))
	return plain
}
