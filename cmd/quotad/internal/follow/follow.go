// Package follow reads a cluster's events in order. It continues after lost connections and nodes, without a gap.
package follow

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Node is a node to read from.
type Node struct {
	// Address is the node's name for people.
	Address string
	Quota   quotav1connect.QuotaServiceClient
}

// Follower reads events.
type Follower struct {
	// Nodes are tried in turn until one answers. Required.
	Nodes []Node
	// From is the first index to read; 0: from now. QuotaPrefix and Holder select events; empty: all.
	From                uint64
	QuotaPrefix, Holder string
	// Patience is how long to keep trying while no node answers. Required.
	Patience time.Duration
	// Each receives the events. Its error ends Run.
	Each func(meta *quotav1.Meta, event *quotav1.Event) error
	// Tell receives each new connection: from is the next index to read, err is why the connection before ended (nil for
	// the first).
	Tell func(node string, from uint64, err error)

	// done is the number of events of index From passed to Each, while the index has more; position counts the events of
	// the index within one stream.
	done, position int
	last           error
}

// pause is how long to wait before the next round over all nodes.
const pause = 200 * time.Millisecond

// Run reads until the context ends, which is no error, or Each returns an error. Other errors are the cluster's, such as
// COMPACTED, or mean that no node answers.
func (f *Follower) Run(ctx context.Context) error {
	alive := time.Now()
	for {
		for _, node := range f.Nodes {
			stood, err := f.follow(ctx, node)
			switch {
			case ctx.Err() != nil:
				return nil //nolint:nilerr // the stream ended because it was asked to
			case !mayResume(err):
				return err
			case stood:
				alive = time.Now()
			case time.Since(alive) > f.Patience:
				return err
			}
			f.last = err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// stopError is an error of Each.
type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

// mayResume reports whether reading can continue after this error, at another node or later at the same one.
func mayResume(err error) bool {
	if _, stopped := errors.AsType[*stopError](err); stopped {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeResourceExhausted, connect.CodeUnknown,
		connect.CodeAborted, connect.CodeInternal:
		return true
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeAlreadyExists, connect.CodePermissionDenied,
		connect.CodeFailedPrecondition, connect.CodeOutOfRange, connect.CodeUnimplemented, connect.CodeDataLoss, connect.CodeUnauthenticated:
		return false
	}
	return false
}

// errEnded is the error for a stream that ended without one.
var errEnded = connect.NewError(connect.CodeUnavailable, errors.New("the stream ended"))

// follow reads one node's events. stood reports whether the node answered.
func (f *Follower) follow(ctx context.Context, node Node) (stood bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(f.Patience, cancel)
	if f.From == 0 {
		if f.From, err = next(ctx, node); err != nil {
			return false, err
		}
	}
	stream, err := node.Quota.Watch(ctx, &quotav1.WatchRequest{FromIndex: f.From, QuotaPrefix: f.QuotaPrefix, Holder: f.Holder})
	if err != nil {
		return false, err
	}
	defer func() { _ = stream.Close() }()
	stood = len(stream.ResponseHeader()) > 0 // blocks until the node accepts or refuses the subscription
	silent.Stop()
	if stood {
		f.Tell(node.Address, f.From, f.last)
	}
	f.position = 0
	for stream.Receive() {
		if err := f.take(stream.Msg()); err != nil {
			return true, err
		}
	}
	if err := stream.Err(); err != nil {
		return stood, err
	}
	return stood, errEnded
}

// next returns the index after the last one that a node has applied: reading begins there also if the connection is lost before the first
// event.
func next(ctx context.Context, node Node) (uint64, error) {
	now, err := node.Quota.ListQuotas(ctx, &quotav1.ListQuotasRequest{PageSize: 1, Read: quotav1.ReadMode_READ_MODE_STALE})
	if err != nil {
		return 0, err
	}
	return now.GetMeta().GetIndex() + 1, nil
}

// take passes the events of a response to Each, except those passed before a connection was lost.
func (f *Follower) take(response *quotav1.WatchResponse) error {
	meta := response.GetMeta()
	if meta.GetIndex() != f.From {
		f.From, f.done, f.position = meta.GetIndex(), 0, 0
	}
	for _, event := range response.GetEvents() {
		if f.position++; f.position <= f.done {
			continue
		}
		if err := f.Each(meta, event); err != nil {
			return &stopError{err}
		}
		f.done = f.position
	}
	if !response.GetMore() {
		f.From, f.done, f.position = meta.GetIndex()+1, 0, 0
	}
	return nil
}
