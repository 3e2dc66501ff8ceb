// Package wire is protobuf's binary form of the API's messages, as in the library google.golang.org/protobuf. It has a faster path for
// the most frequent ones: a Batch of Reserves, and its grants. All other shapes go through the library, which also rejects what cannot be
// read or written.
package wire

import (
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/field"
	"github.com/quotad/quotad/rpc/quotav1"
)

var errNotProto = errors.New("not a protobuf message")

// Codec implements connect.Codec.
type Codec struct {
	// DiscardUnknown drops unknown fields when a message is read.
	DiscardUnknown bool
}

// Name implements connect.Codec.
func (Codec) Name() string { return "proto" }

// Marshal implements connect.Codec. The most frequent messages do not pass here: connect prefers MarshalAppend.
func (Codec) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, errNotProto
	}
	return proto.Marshal(m)
}

// MarshalAppend appends a message, so that connect can reuse its buffers.
func (Codec) MarshalAppend(to []byte, message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, errNotProto
	}
	a := appender{Appender: field.Appender{B: to}}
	switch m := message.(type) {
	case *quotav1.BatchRequest:
		ok = m != nil && a.batchRequest(m)
	case *quotav1.BatchResponse:
		ok = m != nil && a.batchResponse(m)
	default:
		ok = false
	}
	if ok {
		return a.B, nil
	}
	return proto.MarshalOptions{}.MarshalAppend(to, m)
}

// Unmarshal implements connect.Codec. The message keeps no reference to data. Commands and results of one Batch may share equal
// durations: copy one before you change it.
func (c Codec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return errNotProto
	}
	switch m := message.(type) {
	case *quotav1.BatchRequest:
		m.Reset()
		ok = parseRequest(data, m, c.DiscardUnknown)
	case *quotav1.BatchResponse:
		m.Reset()
		ok = parseResponse(data, m, c.DiscardUnknown)
	default:
		ok = false
	}
	if ok {
		return nil
	}
	return proto.UnmarshalOptions{DiscardUnknown: c.DiscardUnknown}.Unmarshal(data, m)
}
