package field_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quotad/quotad/fsm/field"
)

// TestAppender_MatchesProtowire compares appended fields with those of the library's functions, for numbers and lengths of every size.
func TestAppender_MatchesProtowire(t *testing.T) {
	for _, n := range []uint64{0, 1, 127, 128, 16_383, 16_384, 1<<21 - 1, 1 << 21, math.MaxInt64, math.MaxUint64} {
		var a field.Appender
		a.Present(1, n)
		a.Number(15, n)
		want := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), n)
		if n != 0 {
			want = protowire.AppendVarint(protowire.AppendTag(want, 15, protowire.VarintType), n)
		}
		if !bytes.Equal(a.B, want) {
			t.Errorf("%d: % x, not % x", n, a.B, want)
		}
	}
	for _, n := range []int{0, 1, 126, 127, 128, 16_383, 16_384, 1<<21 - 1, 1 << 21} {
		text := strings.Repeat("x", n)
		a := field.Appender{B: []byte("before")}
		outer := a.Open(10)
		a.Flag(1, true)
		a.Flag(2, false)
		a.Text(11, text)
		inner := a.Open(4)
		a.Text(5, text)
		a.Close(inner)
		a.Close(outer)
		a.Flag(15, true)

		bytesOf := func(b []byte, number protowire.Number, content []byte) []byte {
			return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), content)
		}
		flag := func(b []byte, number protowire.Number) []byte {
			return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), 1)
		}
		content, within := flag(nil, 1), []byte(nil)
		if n > 0 {
			content, within = bytesOf(content, 11, []byte(text)), bytesOf(nil, 5, []byte(text))
		}
		want := flag(bytesOf([]byte("before"), 10, bytesOf(content, 4, within)), 15)
		if !bytes.Equal(a.B, want) || a.Bad {
			t.Errorf("%d bytes of text: %d were appended, not the %d wanted; bad: %v", n, len(a.B), len(want), a.Bad)
		}
	}
}

// TestAppender_MarksInvalidUTF8: invalid UTF-8 is an error, whatever is appended before and after it.
func TestAppender_MarksInvalidUTF8(t *testing.T) {
	var a field.Appender
	a.Text(1, "good")
	a.Text(1, "\xff")
	a.Text(1, "good")
	if !a.Bad {
		t.Error("taken for good")
	}
}
