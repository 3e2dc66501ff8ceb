package jsonscan_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/internal/jsonscan"
)

// recorder builds the value that a Scanner reads.
type recorder struct {
	stack []any
	keys  []string
	text  strings.Builder
	value any
}

func (r *recorder) Key(name []byte) { r.keys[len(r.keys)-1] = valid(string(name)) }

func (r *recorder) Open(array bool) {
	r.keys = append(r.keys, "")
	if array {
		r.stack = append(r.stack, []any{})
		return
	}
	r.stack = append(r.stack, map[string]any{})
}

func (r *recorder) Close() {
	top := r.stack[len(r.stack)-1]
	r.stack, r.keys = r.stack[:len(r.stack)-1], r.keys[:len(r.keys)-1]
	r.add(top)
}

func (r *recorder) Text(piece []byte) { r.text.Write(piece) }

func (r *recorder) TextEnd() {
	r.add(valid(r.text.String()))
	r.text.Reset()
}

func (r *recorder) Literal(text []byte) {
	var v any
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		panic(err)
	}
	r.add(v)
}

// valid replaces each byte that is not UTF-8, as encoding/json does.
func valid(text string) string { return string([]rune(text)) }

func (r *recorder) add(v any) {
	if len(r.stack) == 0 {
		r.value = v
		return
	}
	switch top := r.stack[len(r.stack)-1].(type) {
	case []any:
		r.stack[len(r.stack)-1] = append(top, v)
	case map[string]any:
		top[r.keys[len(r.keys)-1]] = v
	}
}

// scan reads a document in pieces of the given size.
func scan(document []byte, size int) (*recorder, *jsonscan.Scanner) {
	r := &recorder{}
	s := jsonscan.New(r)
	for len(document) > 0 {
		n := min(size, len(document))
		_, _ = s.Write(document[:n])
		document = document[n:]
	}
	s.Finish()
	return r, s
}

func TestScanner_Broken(t *testing.T) {
	for _, c := range []struct {
		document string
		at       int64
	}{
		{`{"a":1,}`, 7},
		{`[1,]`, 3},
		{`{"a" 1}`, 5},
		{`{1:2}`, 1},
		{`[1}`, 2},
		{`{"a":1]`, 6},
		{`nul `, 3},
		{`[01]`, 3},
		{`"\x"`, 2},
		{`"\u00g0"`, 5},
		{`{} x`, 3},
		{`]`, 0},
	} {
		for _, size := range []int{len(c.document), 1} {
			_, s := scan([]byte(c.document), size)
			if at, broken := s.Broken(); !broken || at != c.at {
				t.Errorf("%s in pieces of %d: broken %v at %d, want at %d", c.document, size, broken, at, c.at)
			}
		}
	}
}

func TestScanner_BoundsNesting(t *testing.T) {
	_, s := scan([]byte(strings.Repeat("[", 10_001)), 100)
	if at, broken := s.Broken(); !broken || at != 10_000 {
		t.Errorf("broken %v at %d, want at 10000", broken, at)
	}
}

// FuzzScanner compares the Scanner with the decoder of the standard library.
func FuzzScanner(f *testing.F) {
	for _, document := range []string{
		`{"a":[1,-2.5e3,true,false,null,"x\n\"\\\/\b\f\r\t\u00e9\ud83d\ude00\ud83d"],"":{},"b":[]}`,
		` [ ] `, `""`, `1`, `"é"`, `{"a":{"a":{"a":"\udc00\ud800x"}}}`,
	} {
		f.Add([]byte(document), 1)
	}
	f.Fuzz(func(t *testing.T, document []byte, size int) {
		got, s := scan(document, max(size, 1))
		whole, other := scan(document, len(document)+1)
		at, broken := s.Broken()
		if otherAt, otherBroken := other.Broken(); at != otherAt || broken != otherBroken || s.Complete() != other.Complete() {
			t.Fatalf("%q: broken %v at %d in pieces of %d, %v at %d as a whole", document, broken, at, size, otherBroken, otherAt)
		}
		if s.Offset() != int64(len(document)) {
			t.Fatalf("offset %d of %d", s.Offset(), len(document))
		}
		var want any
		decoder := json.NewDecoder(strings.NewReader(string(document)))
		decoder.UseNumber()
		if !json.Valid(document) || decoder.Decode(&want) != nil {
			return
		}
		if !s.Complete() {
			t.Fatalf("%q is JSON, but was not read to its end (%d)", document, at)
		}
		if strings.Contains(string(document), strings.Repeat("x", jsonscan.MaxKey)) {
			return // a truncated key
		}
		a, b, c := fmt.Sprintf("%#v", got.value), fmt.Sprintf("%#v", want), fmt.Sprintf("%#v", whole.value)
		if len(document) < jsonscan.MaxKey && (a != b || a != c) {
			t.Fatalf("%q: %s, want %s", document, a, b)
		}
	})
}
