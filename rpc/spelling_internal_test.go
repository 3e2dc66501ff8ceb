package rpc

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

// TestSpell_Table: JSON as people write it, and as protobuf reads it.
func TestSpell_Table(t *testing.T) {
	for in, want := range map[string]string{
		`{"ttl":"5m"}`:                                         `{"ttl":"300s"}`,
		`{ "ttl" : "1h30m" , "wait":"0.5s"}`:                   `{"ttl":"5400s","wait":"0.5s"}`,
		`{"ttl":"-1m"}`:                                        `{"ttl":"-60s"}`,
		`{"ttl":"250ms"}`:                                      `{"ttl":"0.250s"}`,
		`{"ttl":null,"class":"CLASS_CRITICAL"}`:                `{"ttl":null,"class":"CLASS_CRITICAL"}`,
		`{"class":"Background"}`:                               `{"class":"CLASS_BACKGROUND"}`,
		`{"class":2}`:                                          `{"class":2}`,
		`{"holder":"a","holder":"b","ttl":"1m"}`:               `{"holder":"a","holder":"b","ttl":"60s"}`,
		`{"other":{"ttl":"5m"},"ttl":"1m"}`:                    `{"other":{"ttl":"5m"},"ttl":"60s"}`,
		`{"items":[{"quota":"5m","amount":9007199254740991}]}`: `{"items":[{"quota":"5m","amount":9007199254740991}]}`,
	} {
		got, err := spell([]byte(in), new(quotav1.ReserveRequest).ProtoReflect().Descriptor())
		if string(got) != want || err != nil {
			t.Errorf("%s: %s %v, want %s", in, got, err, want)
		}
	}
}

// TestSpell_KeepsInvalidValues: only durations and names are rewritten. Other errors are left for protobuf to refuse.
func TestSpell_KeepsInvalidValues(t *testing.T) {
	for _, in := range []string{
		`{"ttl":"5m"} {"holder":"b"}`, `{"ttl":"5m"}]`, `{"ttl":"5m","holder":`,
		`{"ttl":"5m","holder":"a","holder":"b"}`, `{"ttl":"5m","itmes":[]}`, `["5m"]`,
	} {
		request := new(quotav1.ReserveRequest)
		_ = jsonCodec{}.Unmarshal([]byte(in), request)
		if malformed(request) == nil {
			t.Errorf("%s became %v", in, request)
		}
	}
}

// FuzzSpell: JSON that protobuf reads keeps its meaning, and no input panics.
func FuzzSpell(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `{"commands":[{"reserve":{"holder":"a","items":[{"quota":"q"}],"ttl":"5m","class":"background"}},null]}`,
		`{"commands":[{"report":{"signals":[{"quota":"q","cause":"saturated","retryAfter":"1m30s"}],"answer":{"headers":{"a":"1m"}}}}]}`,
		`{"commands":`, `{"commands":{}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		plain, spelled := new(quotav1.BatchRequest), new(quotav1.BatchRequest)
		out, err := spell(data, plain.ProtoReflect().Descriptor())
		if protojson.Unmarshal(data, plain) != nil {
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if err := protojson.Unmarshal(out, spelled); err != nil || !proto.Equal(plain, spelled) {
			t.Fatalf("%q became %q: %v", data, out, err)
		}
	})
}
