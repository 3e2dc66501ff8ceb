// Package field appends protobuf's fields one by one, for messages that come by the thousand: without the library's reflection.
package field

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Appender appends fields to a message. Their numbers are below 16, so that a tag is a byte.
type Appender struct {
	B []byte
	// Bad is set by what cannot be written: what was appended is to be thrown away, and the library says why.
	Bad bool
}

// Present appends a number, 0 too: of a field that can be absent 0 is not the same as none.
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

// Open begins a field that is a message and returns where its content begins. Its length is thought to take one byte.
func (a *Appender) Open(field byte) int {
	a.B = append(a.B, field<<3|byte(protowire.BytesType), 0)
	return len(a.B)
}

// Close ends a field that is a message: what it has is moved where its length takes more than a byte.
func (a *Appender) Close(at int) {
	length := uint64(len(a.B) - at)
	if more := protowire.SizeVarint(length) - 1; more > 0 {
		var room [9]byte
		a.B = append(a.B, room[:more]...)
		copy(a.B[at+more:], a.B[at:])
	}
	protowire.AppendVarint(a.B[:at-1], length)
}
