package wire_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/wire"
)

// usualRequest is a Batch of Reserves, as a dispatcher sends it.
func usualRequest(n int) *quotav1.BatchRequest {
	m := &quotav1.BatchRequest{Commands: make([]*quotav1.Command, n)}
	for i := range m.Commands {
		m.Commands[i] = &quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: &quotav1.ReserveRequest{
			Holder: "dispatcher", Items: []*quotav1.Item{{Quota: fmt.Sprintf("quota-%d", i%10), Amount: new(int64(1))}}, Consume: true,
			Ttl: durationpb.New(time.Second),
		}}}
	}
	return m
}

// usualResponse is the answer to a Batch of Reserves that consume, all of them granted.
func usualResponse(n int) *quotav1.BatchResponse {
	m := &quotav1.BatchResponse{
		Meta:    &quotav1.Meta{Term: 2, Index: 12_345, ClusterTime: durationpb.New(time.Hour), Node: "n1"},
		Results: make([]*quotav1.CommandResult, n),
	}
	for i := range m.Results {
		items := func() []*quotav1.GrantedItem {
			return []*quotav1.GrantedItem{{Quota: fmt.Sprintf("quota-%d", i%10), Amount: 1, ExpiresIn: durationpb.New(time.Second)}}
		}
		m.Results[i] = &quotav1.CommandResult{Kind: &quotav1.CommandResult_Reserve{Reserve: &quotav1.ReserveResponse{
			Outcome: &quotav1.ReserveResponse_Lease{Lease: &quotav1.Lease{
				Id: uint64(i + 100_000), Fence: uint64(i + 200_000), Items: items(), ExpiresIn: durationpb.New(time.Second),
				Operation: &quotav1.Operation{
					Op: 1, Items: items(), SpendIn: durationpb.New(50 * time.Second), Transit: durationpb.New(time.Second),
				},
				AskedTtl: durationpb.New(time.Second), Class: quotav1.Class_CLASS_STANDARD,
			}},
		}}}
	}
	return m
}

// batch is a message with a name.
type batch struct {
	name    string
	message proto.Message
}

func usual(n int) []batch {
	return []batch{{"request", usualRequest(n)}, {"response", usualResponse(n)}}
}

// BenchmarkAppend appends a batch to a buffer that has room, as connect's buffers have.
func BenchmarkAppend(b *testing.B) {
	for _, m := range usual(2_000) {
		to := make([]byte, 0, 2*proto.Size(m.message))
		b.Run(m.name+"/wire", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = wire.Codec{}.MarshalAppend(to, m.message)
			}
		})
		b.Run(m.name+"/library", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = proto.MarshalOptions{}.MarshalAppend(to, m.message)
			}
		})
	}
}

// BenchmarkParse reads a batch into a message of its own.
func BenchmarkParse(b *testing.B) {
	for _, m := range usual(2_000) {
		data, err := proto.Marshal(m.message)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(m.name+"/wire", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = wire.Codec{}.Unmarshal(data, fresh(m.message))
			}
		})
		b.Run(m.name+"/library", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = proto.Unmarshal(data, fresh(m.message))
			}
		})
	}
}

// fresh returns an empty message of the same type.
func fresh(m proto.Message) proto.Message { return m.ProtoReflect().New().Interface() }
