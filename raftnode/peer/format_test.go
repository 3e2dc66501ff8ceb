package peer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"
	"testing"
)

// formatOf are the versions of the protocol between peers with a hash of the fields that each has now.
var formatOf = map[string]string{
	"quotad-peer/2": "45cf592bd8931bf8",
}

// TestMagic_RisesWithTheFormat: a changed field of what peers say to each other needs a decision. Where a field goes, or means something
// else, or an older peer must know a new one, the version rises and gets the new hash. Where an older peer may pass a new field over, the
// version keeps its number and gets the new hash.
func TestMagic_RisesWithTheFormat(t *testing.T) {
	sum := sha256.New()
	for _, message := range []any{Preface{}, Request{}, Reply{}} {
		writeFields(t, sum, reflect.TypeOf(message))
	}
	if got := hex.EncodeToString(sum.Sum(nil)[:8]); got != formatOf[Magic] {
		t.Errorf("the format of %s has the hash %s, not %s", Magic, got, formatOf[Magic])
	}
}

// writeFields writes what is on the wire of a message: the names, types and options of its fields..
func writeFields(t *testing.T, out io.Writer, message reflect.Type) {
	t.Helper()
	_, _ = fmt.Fprintf(out, "%s\n", message.Name())
	for _, field := range reflect.VisibleFields(message) {
		if field.Anonymous { // its fields are the message's
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
