package wire_test

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

// fuzz reads any bytes as a message of empty's type.
func fuzz(f *testing.F, empty proto.Message) {
	f.Helper()
	for _, p := range places() {
		f.Add(p.within(p.usual))
		f.Add(p.within(append(bytes.Clone(p.usual), p.usual...)))
	}
	for _, n := range []int{0, 1, 3} {
		for _, m := range usual(n) {
			data, err := proto.Marshal(m.message)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
			f.Add(data[:len(data)*2/3])
			for _, at := range []int{3, 5, 8} {
				if at < len(data) {
					damaged := bytes.Clone(data)
					damaged[at] ^= 0x0b
					f.Add(damaged)
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) { parsesAlike(t, empty, data) })
}

// FuzzRequest: wire reads from any bytes the BatchRequest that the library reads, or none.
func FuzzRequest(f *testing.F) { fuzz(f, new(quotav1.BatchRequest)) }

// FuzzResponse: wire reads from any bytes the BatchResponse that the library reads, or none.
func FuzzResponse(f *testing.F) { fuzz(f, new(quotav1.BatchResponse)) }
