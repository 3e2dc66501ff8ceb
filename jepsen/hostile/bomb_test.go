package hostile

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

// TestBombs: those that a node is to take are valid messages within its bounds, and small before they are unpacked.
func TestBombs(t *testing.T) {
	carried := 0
	for _, bomb := range bombs() {
		if len(bomb.body) > 80<<10 {
			t.Errorf("%s %s is %d bytes long", bomb.path, bomb.format, len(bomb.body))
		}
		zip, err := gzip.NewReader(bytes.NewReader(bomb.body))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(zip)
		if err != nil {
			t.Fatal(err)
		}
		if !bomb.carry {
			continue
		}
		carried++
		if len(body) >= largeBody || len(body) < smallBody-3 {
			t.Errorf("%s %s unpacks to %d bytes", bomb.path, bomb.format, len(body))
		}
		if strings.HasSuffix(bomb.format, "json") {
			err = json.Unmarshal(body, &map[string]any{})
		} else {
			err = proto.Unmarshal(body, &quotav1.BatchRequest{})
		}
		if err != nil {
			t.Errorf("%s %s: %v", bomb.path, bomb.format, err)
		}
	}
	if carried == 0 {
		t.Error("no bomb is taken")
	}
}
