// Package wire is protobuf's binary form of the API's messages, as the library google.golang.org/protobuf has it, with a
// shorter way for those that come by the thousand: a Batch of Reserves, and what it grants. Whatever is not of their usual
// shape goes through the library, which also judges what cannot be read or written.
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
	// DiscardUnknown drops fields that are not known when a message is read.
	DiscardUnknown bool
}

// Name implements connect.Codec.
func (Codec) Name() string { return "proto" }

// Marshal implements connect.Codec. What comes by the thousand does not come here: connect prefers MarshalAppend.
func (Codec) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, errNotProto
	}
	return proto.Marshal(m)
}

// MarshalAppend appends a message, which lets connect use its buffers again.
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

// Unmarshal implements connect.Codec. The message keeps nothing of data. Commands and results of one Batch may share durations that are
// the same: who changes one makes a copy first.
func (c Codec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return errNotProto
	}
	switch m := message.(type) {
	case *quotav1.BatchRequest:
		m.Reset()
		ok = parseRequest(data, m)
	case *quotav1.BatchResponse:
		m.Reset()
		ok = parseResponse(data, m)
	default:
		ok = false
	}
	if ok {
		return nil
	}
	return proto.UnmarshalOptions{DiscardUnknown: c.DiscardUnknown}.Unmarshal(data, m)
}
