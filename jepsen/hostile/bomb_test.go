package hostile

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestBombs_AreValidMessages: the bombs that a node accepts are valid messages within its bounds, and small before they are unpacked.
func TestBombs_AreValidMessages(t *testing.T) {
	carried := 0
	unpacked := map[*byte]bool{} // some are the same message
	for _, bomb := range bombs() {
		if len(bomb.packed) > 80<<10 {
			t.Errorf("%s %s is %d bytes long", bomb.path, bomb.format, len(bomb.packed))
		}
		if bomb.carry {
			carried++
		}
		if unpacked[&bomb.packed[0]] {
			continue
		}
		unpacked[&bomb.packed[0]] = true
		zip, err := gzip.NewReader(bytes.NewReader(bomb.packed))
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
		if len(body) >= largeBody || len(body) < smallBody-3 {
			t.Errorf("%s %s unpacks to %d bytes", bomb.path, bomb.format, len(body))
		}
		if bomb.format == asJSON {
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

// taker accepts the calls of bombs, and counts them by name.
type taker struct {
	quotav1connect.UnimplementedQuotaServiceHandler
	taken map[string]int
}

// Reserve implements QuotaService.
func (t taker) Reserve(context.Context, *quotav1.ReserveRequest) (*quotav1.ReserveResponse, error) {
	t.taken["Reserve"]++
	return &quotav1.ReserveResponse{}, nil
}

// Batch implements QuotaService.
func (t taker) Batch(context.Context, *quotav1.BatchRequest) (*quotav1.BatchResponse, error) {
	t.taken["Batch"]++
	return &quotav1.BatchResponse{}, nil
}

// ListQuotas implements QuotaService.
func (t taker) ListQuotas(context.Context, *quotav1.ListQuotasRequest) (*quotav1.ListQuotasResponse, error) {
	t.taken["ListQuotas"]++
	return &quotav1.ListQuotasResponse{}, nil
}

// TestBombs_AreReadByTheAPI: in each format the API's own code finds the message, unpacks it and accepts it.
func TestBombs_AreReadByTheAPI(t *testing.T) {
	got, want := map[string]int{}, map[string]int{}
	_, handler := quotav1connect.NewQuotaServiceHandler(taker{taken: got})
	for _, bomb := range bombs() {
		if !bomb.carry {
			continue
		}
		want[path.Base(bomb.path)]++
		request, err := bomb.request(t.Context(), "http://node")
		if err != nil {
			t.Fatal(err)
		}
		request.ProtoMajor, request.ProtoMinor = 2, 0 // gRPC needs it
		answer := httptest.NewRecorder()
		if handler.ServeHTTP(answer, request); answer.Code != http.StatusOK {
			t.Errorf("%s %s: %d %s", bomb.path, bomb.format, answer.Code, answer.Body)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("taken are %v of %v", got, want)
	}
}
