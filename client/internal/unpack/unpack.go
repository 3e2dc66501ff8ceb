// Package unpack decompresses bodies with the Content-Encoding gzip: net/http passes them unchanged to callers that request gzip
// themselves.
package unpack

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// Encoding returns a body's encoding, in lower case; empty: none.
func Encoding(header http.Header) string {
	encoding := strings.ToLower(strings.TrimSpace(strings.Join(header.Values("Content-Encoding"), ",")))
	if encoding == "identity" {
		return ""
	}
	return encoding
}

// Start returns the decompressed beginning of a body, up to most bytes. A truncated body is decompressed as far as possible. nil: its
// encoding is not gzip.
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
