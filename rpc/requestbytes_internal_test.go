package rpc

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/raftnode/budget"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/wire"
)

// roomIn starts a call's part of a budget.
func roomIn(from *budget.Budget) *requestBytes {
	return &requestBytes{from: from, account: "token:a", refused: func(full *budget.FullError) error { return budgetError(full) }}
}

func packed(t *testing.T, message []byte) []byte {
	t.Helper()
	var into bytes.Buffer
	zip := gzip.NewWriter(&into)
	if _, err := zip.Write(message); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return into.Bytes()
}

// enveloped returns a body of one message in its envelope.
func enveloped(flags byte, message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message))), message...) //nolint:gosec // a few KiB
}

// packedRequests returns requests with a compressed message, by protocol.
func packedRequests(t *testing.T, message []byte) map[string]*http.Request {
	t.Helper()
	all, zipped := map[string]*http.Request{}, packed(t, message)
	for contentType, header := range map[string]string{
		"application/proto": "Content-Encoding", "application/json": "Content-Encoding", "application/connect+proto": "Connect-Content-Encoding",
		"application/grpc": "Grpc-Encoding", "application/grpc+proto": "Grpc-Encoding", "application/grpc-web": "Grpc-Encoding",
	} { // in any order
		body := zipped
		if header != "Content-Encoding" {
			body = enveloped(1, zipped)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		r.Header.Set(header, "gzip")
		all[contentType] = r
	}
	query := url.Values{
		"message": {base64.RawURLEncoding.EncodeToString(zipped)}, "base64": {"1"}, "compression": {"gzip"}, "encoding": {"proto"},
	}
	all["GET"] = httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/?"+query.Encode(), nil)
	return all
}

// readAs reads the message of a request that is not compressed any more.
func readAs(t *testing.T, name string, r *http.Request) ([]byte, error) {
	t.Helper()
	if r.Method == http.MethodGet {
		return base64.RawURLEncoding.DecodeString(r.URL.Query().Get("message"))
	}
	got, err := io.ReadAll(r.Body)
	if _, inEnvelope := packedBody(r.Header.Get("Content-Type")); !inEnvelope || err != nil {
		return got, err
	}
	if got[0] != 0 || int(binary.BigEndian.Uint32(got[1:])) != len(got)-envelopeHead {
		t.Errorf("%s: the envelope says %x of %d bytes", name, got[:envelopeHead], len(got))
	}
	return got[envelopeHead:], nil
}

// TestCharge_PackedInEveryProtocol: the decompressed size of a request is required of the budget and charged, whichever protocol declares
// the compression. connect gets the message without compression.
func TestCharge_PackedInEveryProtocol(t *testing.T) {
	message := bytes.Repeat([]byte("quota"), 10_000)
	for name, r := range packedRequests(t, message) { // in any order
		from := newRequestBytes(64 << 20)
		room := roomIn(from)
		query := len(r.URL.RawQuery)
		plain, err := unpacked(r, room, smallMessage)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := readAs(t, name, plain)
		if err != nil || !bytes.Equal(got, message) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if want := int64(len(message)+query) * perByte; room.used != want || room.has < want {
			t.Errorf("%s: %d were used, of %d that were taken; want %d", name, room.used, room.has, want)
		}
		room.giveBack()
		if used, callers := from.InUse(); used != 0 || callers != 0 {
			t.Errorf("%s: %d are in use by %d callers", name, used, callers)
		}
	}
}

// TestUnpacked_IsBounded: no request decompresses to more than its procedure's messages may have, or to more than there is room for.
func TestUnpacked_IsBounded(t *testing.T) {
	bomb := make([]byte, 8<<20)
	for what, most := range map[string]struct {
		budget, longest int64
		reason          quotav1.Reason
	}{
		"length": {256 << 20, smallMessage, quotav1.Reason_REASON_TOO_LARGE},
		"room":   {1 << 20, maxMessage, quotav1.Reason_REASON_CALLER_BUDGET},
	} { // in any order
		for name, r := range packedRequests(t, bomb) { // in any order
			from := newRequestBytes(most.budget)
			room := roomIn(from)
			plain, err := unpacked(r, room, most.longest)
			if err == nil {
				_, err = readAs(t, name, plain)
			}
			if got := infoOf(err).GetReason(); got != most.reason {
				t.Errorf("%s, %s: %v", what, name, err)
			}
			if room.has > (most.longest+2*readStep)*perByte+2*unpackerBytes {
				t.Errorf("%s, %s: %d were taken", what, name, room.has)
			}
			room.giveBack()
			if used, _ := from.InUse(); used != 0 {
				t.Errorf("%s, %s: %d are in use", what, name, used)
			}
		}
	}
}

// TestRequestBytes_AreReleased: in whatever order a call requires, uses and returns memory, it has what it uses, and none is left at the
// end.
func TestRequestBytes_AreReleased(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := newRequestBytes(1 << 20)
		rooms := []*requestBytes{roomIn(from), roomIn(from), roomIn(from)}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			room := rapid.SampledFrom(rooms).Draw(t, "room")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				n := rapid.IntRange(0, 64<<10).Draw(t, "bytes")
				if room.require(int64(n)) == nil {
					room.use(rapid.IntRange(0, n).Draw(t, "read"))
				}
			case 2:
				room.trim()
			case 3:
				room.giveBack()
			}
			all := int64(0)
			for _, r := range rooms {
				if r.used > r.has {
					t.Fatalf("%d are used, %d were taken", r.used, r.has)
				}
				all += r.has
			}
			if used, _ := from.InUse(); used != all || used > 1<<20 {
				t.Fatalf("%d are in use, calls have %d", used, all)
			}
		}
		for _, r := range rooms {
			r.giveBack()
		}
		if used, callers := from.InUse(); used != 0 || callers != 0 {
			t.Fatalf("%d are in use by %d callers", used, callers)
		}
	})
}

// TestCodec_DropsUnknownFields: a field that this node does not know is dropped at any depth, and its message is read.
func TestCodec_DropsUnknownFields(t *testing.T) {
	unknown := protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "later")
	request := &quotav1.BatchRequest{Commands: []*quotav1.Command{{Kind: &quotav1.Command_Reserve{Reserve: &quotav1.ReserveRequest{
		Holder: "a", Items: []*quotav1.Item{{Quota: "q"}},
	}}}}}
	want := proto.CloneOf(request)
	reserve := request.Commands[0].GetReserve()
	for _, m := range []proto.Message{request, request.Commands[0], reserve, reserve.Items[0]} {
		m.ProtoReflect().SetUnknown(unknown)
	}
	data, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	got := &quotav1.BatchRequest{}
	if err := (binaryCodec{wire.Codec{DiscardUnknown: true}}).Unmarshal(data, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	// Below the top alone, where parts of a Batch are read by the library.
	request = &quotav1.BatchRequest{Commands: []*quotav1.Command{
		{Kind: &quotav1.Command_Settle{Settle: &quotav1.SettleRequest{Lease: 1}}},
		{Kind: &quotav1.Command_Reserve{Reserve: &quotav1.ReserveRequest{RequestId: &quotav1.RequestId{IdempotencyKey: "k"}}}},
	}}
	want = proto.CloneOf(request)
	request.Commands[0].GetSettle().ProtoReflect().SetUnknown(unknown)
	request.Commands[1].GetReserve().RequestId.ProtoReflect().SetUnknown(unknown)
	if data, err = proto.Marshal(request); err != nil {
		t.Fatal(err)
	}
	got = &quotav1.BatchRequest{}
	if err := (binaryCodec{wire.Codec{DiscardUnknown: true}}).Unmarshal(data, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("below the top: %v, %v", got, err)
	}
}

// TestCodec_BoundsParts: a request with so many messages that decoding takes many times its bytes is refused before it is decoded. One
// with as many as it may have is read.
func TestCodec_BoundsParts(t *testing.T) {
	repeated := func(part []byte, n int) []byte { return bytes.Repeat(part, n) }
	batch := &quotav1.BatchRequest{Commands: make([]*quotav1.Command, maxBatch)}
	for i := range batch.Commands {
		items := make([]*quotav1.Item, maxItems)
		for j := range items {
			items[j] = &quotav1.Item{Quota: "q"}
		}
		batch.Commands[i] = &quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: &quotav1.ReserveRequest{Holder: "h", Items: items}}}
	}
	largest, err := proto.Marshal(batch)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data    []byte
		into    proto.Message
		refused bool
	}{
		"empty items":        {repeated([]byte{3<<3 | 2, 0}, smallMessage/2), &quotav1.ReserveRequest{}, true},
		"empty commands":     {repeated([]byte{1<<3 | 2, 0}, maxMessage/2), &quotav1.BatchRequest{}, true},
		"empty names":        {repeated([]byte{4<<3 | 2, 0}, smallMessage/2), &quotav1.BeginTaskRequest{}, true},
		"most of a batch":    {largest, &quotav1.BatchRequest{}, false},
		"an ordinary string": {append([]byte{2<<3 | 2, 3}, "abc"...), &quotav1.ReserveRequest{}, false},
	} { // in any order
		if err := (binaryCodec{wire.Codec{DiscardUnknown: true}}).Unmarshal(c.data, c.into); err != nil {
			t.Fatal(err)
		}
		if got := malformed(c.into) != nil; got != c.refused {
			t.Errorf("%s: refused %t", name, got)
		}
	}
	reserve := &quotav1.ReserveRequest{}
	if err := (jsonCodec{"json"}).Unmarshal([]byte(`{"items":[`+string(repeated([]byte("{},"), 20_000))+`{}]}`), reserve); err != nil ||
		malformed(reserve) == nil {
		t.Errorf("empty items as JSON: %v", err)
	}
}

// TestCodec_CountsNoBracesInStrings: a Report carries the beginning of a provider's answer, which may be a long list in JSON.
func TestCodec_CountsNoBracesInStrings(t *testing.T) {
	answer := `[` + strings.Repeat(`{"a":"\\"},`, mostParts) + `{}]`
	body, err := json.Marshal(map[string]any{"answer": map[string]any{"status": 429, "body": answer}})
	if err != nil {
		t.Fatal(err)
	}
	request := &quotav1.ReportRequest{}
	if err := (jsonCodec{"json"}).Unmarshal(body, request); err != nil || malformed(request) != nil {
		t.Errorf("%v, %v", err, malformed(request))
	}
	for text, want := range map[string]int{`{`: 1, `{"{":"\"{"}{`: 2, `"\\"{`: 1, `"\\\"{"{`: 1, `"`: 0, `"\`: 0} {
		if got := objects([]byte(text)); got != want {
			t.Errorf("%s has %d objects, want %d", text, got, want)
		}
	}
}
