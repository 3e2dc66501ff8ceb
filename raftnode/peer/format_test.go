package peer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"
	"testing"
)

// formats has a row for each format of the messages between peers, oldest first: the protocol's version, and a hash of all fields. The list
// only grows: a row is never edited.
var formats = []struct{ version, hash string }{
	{"quotad-peer/2", "45cf592bd8931bf8"},
}

// TestMagic_RisesWithTheFormat: a changed field of a peer message needs a decision, and a row of its own. If a field is removed or changes
// its meaning, or an older peer must know a new one, the row is of the next version. Only fields that older peers may ignore can join a
// version, because peers of different versions refuse each other.
func TestMagic_RisesWithTheFormat(t *testing.T) {
	sum := sha256.New()
	for _, message := range []any{Preface{}, Request{}, Reply{}} {
		writeFields(t, sum, reflect.TypeOf(message))
	}
	last := formats[len(formats)-1]
	if got := hex.EncodeToString(sum.Sum(nil)[:8]); got != last.hash {
		t.Errorf("the format has the hash %s, the last row (%s) has %s: add a row", got, last.version, last.hash)
	}
	if last.version != Magic {
		t.Errorf("the last row is of %s, peers speak %s", last.version, Magic)
	}
	known := map[string]bool{}
	for i, row := range formats {
		if known[row.hash] || i > 0 && row.version < formats[i-1].version {
			t.Errorf("the row %+v is there twice, or follows a later version", row)
		}
		known[row.hash] = true
	}
}

// writeFields writes the wire format of a message: the names, types and options of its fields.
func writeFields(t *testing.T, out io.Writer, message reflect.Type) {
	t.Helper()
	_, _ = fmt.Fprintf(out, "%s\n", message.Name())
	for _, field := range reflect.VisibleFields(message) {
		if field.Anonymous { // its fields are promoted to the message
			continue
		}
		one := field.Type
		if one.Kind() == reflect.Slice {
			one = one.Elem()
		}
		if one.PkgPath() != "" || one.Name() == "" {
			t.Errorf("%s.%s: the test does not know what %s has in it", message.Name(), field.Name, field.Type)
		}
		_, _ = fmt.Fprintf(out, "%s %q\n", field.Type, field.Tag.Get("json"))
	}
}
