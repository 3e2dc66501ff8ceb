package peer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"
	"testing"
)

// formatOf maps each version of the protocol between peers to a hash of the fields that it has now.
var formatOf = map[string]string{
	"quotad-peer/2": "45cf592bd8931bf8",
}

// TestMagic_RisesWithTheFormat: a changed field of a peer message needs a decision. The version rises, with the new hash, if a field is
// removed or changes its meaning, or if an older peer must know a new one. If an older peer may ignore a new field, the version stays and
// gets the new hash.
func TestMagic_RisesWithTheFormat(t *testing.T) {
	sum := sha256.New()
	for _, message := range []any{Preface{}, Request{}, Reply{}} {
		writeFields(t, sum, reflect.TypeOf(message))
	}
	if got := hex.EncodeToString(sum.Sum(nil)[:8]); got != formatOf[Magic] {
		t.Errorf("the format of %s has the hash %s, not %s", Magic, got, formatOf[Magic])
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
