// Package field appends protobuf fields one by one, without the library's reflection, for messages in large numbers.
package field

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Appender appends fields to a message. Their numbers are below 16, so that a tag takes one byte.
type Appender struct {
	B []byte
	// Bad is set by a value that cannot be encoded. The caller discards B, and the library's encoder returns the error.
	Bad bool
}

// Present appends a number, even 0: in an optional field 0 differs from absent.
func (a *Appender) Present(field byte, n uint64) {
	a.B = protowire.AppendVarint(append(a.B, field<<3), n)
}

// Number appends a number.
func (a *Appender) Number(field byte, n uint64) {
	if n != 0 {
		a.Present(field, n)
	}
}

// Flag appends a bool.
func (a *Appender) Flag(field byte, is bool) {
	if is {
		a.B = append(a.B, field<<3, 1)
	}
}

// Text appends a string.
func (a *Appender) Text(field byte, s string) {
	if s != "" {
		a.Bad = a.Bad || !utf8.ValidString(s)
		a.B = protowire.AppendString(append(a.B, field<<3|byte(protowire.BytesType)), s)
	}
}

// Open begins a message field and returns where its content begins. It reserves one byte for the length.
func (a *Appender) Open(field byte) int {
	a.B = append(a.B, field<<3|byte(protowire.BytesType), 0)
	return len(a.B)
}

// Close ends a message field. It moves the content if the length takes more than one byte.
func (a *Appender) Close(at int) {
	length := uint64(len(a.B) - at)
	if more := protowire.SizeVarint(length) - 1; more > 0 {
		var room [9]byte
		a.B = append(a.B, room[:more]...)
		copy(a.B[at+more:], a.B[at:])
	}
	protowire.AppendVarint(a.B[:at-1], length)
}
