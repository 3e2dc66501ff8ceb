package rpc

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/wire"
)

// Connect refuses a message that it cannot decode before any code of quotad runs: without an ErrorInfo, and before the caller is known.
// So these codecs never fail. They leave such a message empty except for a mark, which the interceptor decoding turns into a typed error
// once the caller is known.

// malformedField is the number of the unknown field that marks a message that could not be decoded.
const malformedField = protowire.MaxValidNumber

// markMalformed empties a message and records why it could not be decoded.
func markMalformed(m proto.Message, cause error) {
	proto.Reset(m)
	text := cause.Error()
	if spelling, ok := errors.AsType[*spellingError](cause); ok {
		text = strings.Join([]string{spelling.field, spelling.message, spelling.hint}, markSeparator)
	}
	mark := protowire.AppendTag(nil, malformedField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(mark, text))
}

// markSeparator separates the parts of a mark that names a field. JSON never has it unescaped.
const markSeparator = "\x00"

// malformed returns the error of a message that could not be decoded, nil for others.
func malformed(message any) *connect.Error {
	m, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	for unknown := m.ProtoReflect().GetUnknown(); len(unknown) > 0; {
		number, _, size := protowire.ConsumeField(unknown)
		if size < 0 {
			return nil
		}
		if number == malformedField {
			_, _, header := protowire.ConsumeTag(unknown)
			cause, _ := protowire.ConsumeString(unknown[header:])
			if parts := strings.Split(cause, markSeparator); len(parts) == 3 {
				return invalid(parts[0], parts[1], parts[2])
			}
			return invalid("body", "cannot be decoded: "+cause, "use the fields and types of the schema (docs/api.md)")
		}
		unknown = unknown[size:]
	}
	return nil
}

var errNotProto = errors.New("not a protobuf message")

// binaryCodec is protobuf's binary form. It drops fields that this node does not know: clients of a newer version are served, and no
// unchecked field is kept or forwarded.
type binaryCodec struct{ wire.Codec }

// Unmarshal implements connect.Codec.
func (c binaryCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return errNotProto
	}
	of := m.ProtoReflect().Descriptor()
	if most := partsOf(of); tooManyParts(data, of, most) {
		markMalformed(m, partsError(most))
		return nil
	}
	if err := c.Codec.Unmarshal(data, m); err != nil {
		markMalformed(m, err)
	}
	return nil
}

// jsonCodec is JSON for people. An unknown field is an error: a misspelt amount or request id must not quietly mean something else.
// Answers have every field that is not optional, so that a reader finds an available of 0.
type jsonCodec struct{ name string }

// Name implements connect.Codec.
func (c jsonCodec) Name() string { return c.name }

// Marshal implements connect.Codec.
func (jsonCodec) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, errNotProto
	}
	return protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (jsonCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return errNotProto
	}
	if most := partsOf(m.ProtoReflect().Descriptor()); objects(data) > most {
		markMalformed(m, partsError(most))
		return nil
	}
	err := protojson.Unmarshal(data, m)
	if err == nil {
		return nil
	}
	spelled, spellErr := spell(data, m.ProtoReflect().Descriptor())
	if _, ok := errors.AsType[*spellingError](spellErr); ok {
		markMalformed(m, spellErr)
		return nil
	}
	if spellErr == nil {
		proto.Reset(m)
		if err = protojson.Unmarshal(spelled, m); err == nil {
			return nil
		}
	}
	markMalformed(m, err)
	return nil
}

// objects returns how many objects JSON has. Braces in strings are text: a Report carries the answer of a provider.
func objects(data []byte) (n int) {
	inString := false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			inString = !inString
		case c == '\\' && inString:
			i++
		case c == '{' && !inString:
			n++
		}
	}
	return n
}

// codecs are the handlers' codecs and compression. unpacked has decompressed the requests before.
func codecs() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(binaryCodec{wire.Codec{DiscardUnknown: true}}), connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
		connect.WithCompression(gzipName,
			func() connect.Decompressor { return &gzip.Reader{} },
			func() connect.Compressor { return gzip.NewWriter(io.Discard) },
		),
	)
}

// decoding refuses messages that could not be decoded.
type decoding struct{}

// WrapUnary implements connect.Interceptor.
func (decoding) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := malformed(req.Any()); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (decoding) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (decoding) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return next(ctx, decodingConn{conn, requestOf(ctx).room})
	}
}

type decodingConn struct {
	connect.StreamingHandlerConn
	// room is what the request takes; it is empty once a message has been received.
	room *requestBytes
}

// Send implements connect.StreamingHandlerConn. The messages of a client stream have taken effect, so its answer is charged, never
// refused.
func (c decodingConn) Send(message any) error {
	if message, ok := message.(proto.Message); ok {
		if err := c.room.answer(proto.Size(message), c.Spec().StreamType == connect.StreamTypeClient); err != nil {
			return err
		}
		defer c.room.giveBack()
	}
	return c.StreamingHandlerConn.Send(message)
}

// Receive implements connect.StreamingHandlerConn.
func (c decodingConn) Receive(message any) error {
	err := c.StreamingHandlerConn.Receive(message)
	c.room.giveBack()
	if err != nil {
		return err
	}
	if err := malformed(message); err != nil {
		return err
	}
	return nil
}
