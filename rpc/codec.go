package rpc

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/wire"
)

// Connect answers a message that it cannot decode before any code of ours runs, without an ErrorInfo and before it is
// known who calls. So our codecs never fail: they leave a message empty but for a mark, and the interceptor decoding
// turns the mark into a typed error once the caller is known.

// malformedField is the number of the unknown field that marks a message which could not be decoded.
const malformedField = protowire.MaxValidNumber

// markMalformed empties a message and notes why it could not be decoded.
func markMalformed(m proto.Message, cause error) {
	proto.Reset(m)
	mark := protowire.AppendTag(nil, malformedField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(mark, cause.Error()))
}

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
			return invalid("body", "it cannot be read: "+cause, "the schema has the fields and their types")
		}
		unknown = unknown[size:]
	}
	return nil
}

var errNotProto = errors.New("not a protobuf message")

// binaryCodec is protobuf's binary form. Fields that this node does not know are passed over, as protobuf has it.
type binaryCodec struct{ wire.Codec }

// Unmarshal implements connect.Codec.
func (c binaryCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return errNotProto
	}
	if err := c.Codec.Unmarshal(data, m); err != nil {
		markMalformed(m, err)
	}
	return nil
}

// jsonCodec is JSON as people write it. A field that does not exist is an error: a misspelt amount or request id must
// not quietly mean something else.
type jsonCodec struct{ name string }

// Name implements connect.Codec.
func (c jsonCodec) Name() string { return c.name }

// Marshal implements connect.Codec.
func (jsonCodec) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, errNotProto
	}
	return protojson.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (jsonCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return errNotProto
	}
	if err := protojson.Unmarshal(data, m); err != nil {
		markMalformed(m, err)
	}
	return nil
}

// codecs are the handlers' codecs and compression.
func codecs() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(binaryCodec{}), connect.WithCodec(jsonCodec{"json"}), connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
		connect.WithCompression("gzip",
			func() connect.Decompressor { return &boundedGzip{} },
			func() connect.Compressor { return gzip.NewWriter(io.Discard) },
		),
	)
}

// boundedGzip unpacks no more than a message may have, however little it was packed into.
type boundedGzip struct {
	unpack gzip.Reader
	left   int64
	// bad is set where not even the header is gzip.
	bad bool
}

// Reset implements connect.Decompressor. What is wrong with a header is told by Read, where a typed error gets through.
func (g *boundedGzip) Reset(r io.Reader) error {
	g.left = maxMessage
	g.bad = g.unpack.Reset(r) != nil
	return nil
}

// Close implements connect.Decompressor.
func (g *boundedGzip) Close() error {
	if g.bad {
		return nil
	}
	return g.unpack.Close()
}

// Read implements io.Reader.
func (g *boundedGzip) Read(p []byte) (int, error) {
	if g.bad {
		return 0, invalid("body", "it is not gzip", "leave Content-Encoding out, or pack it")
	}
	n, err := g.unpack.Read(p)
	if g.left -= int64(n); g.left < 0 {
		return 0, tooLargeError(fmt.Sprintf("the body unpacks to more than %d bytes", maxMessage))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return n, invalid("body", "it cannot be unpacked: "+err.Error(), "send it again")
	}
	return n, err
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
		return next(ctx, decodingConn{conn})
	}
}

type decodingConn struct{ connect.StreamingHandlerConn }

// Receive implements connect.StreamingHandlerConn.
func (c decodingConn) Receive(message any) error {
	if err := c.StreamingHandlerConn.Receive(message); err != nil {
		return err
	}
	if err := malformed(message); err != nil {
		return err
	}
	return nil
}
