// Package follow reads a cluster's events one after the other, over lost connections and lost nodes, and misses none.
package follow

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Node is one to read from.
type Node struct {
	// Address is its name for people.
	Address string
	Quota   quotav1connect.QuotaServiceClient
}

// Follower reads events.
type Follower struct {
	// Nodes are asked in turn until one answers. Required.
	Nodes []Node
	// From is the first index wanted; 0: from now. QuotaPrefix and Holder keep only events of these; empty: all.
	From                uint64
	QuotaPrefix, Holder string
	// Patience is how long to go on while no node answers. Required.
	Patience time.Duration
	// Each takes the events. An error of it ends Run.
	Each func(meta *quotav1.Meta, event *quotav1.Event) error
	// Tell takes what happens to the connection: from is the index that is read next, err why the connection before ended (nil at
	// first).
	Tell func(node string, from uint64, err error)

	// done is how many events of index From were taken, while there are more of it; position counts them within one stream.
	done, position int
	last           error
}

// pause is how long to wait before all nodes are asked again.
const pause = 200 * time.Millisecond

// Run reads until the context ends, which is no error, or Each returns one. Other errors are the cluster's, such as COMPACTED, or that
// no node answers.
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

// mayResume reports whether another node, or the same one later, may go on where this one ended.
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

// errEnded is what a stream that ended without an error means.
var errEnded = connect.NewError(connect.CodeUnavailable, errors.New("the stream ended"))

// follow reads one node's events. stood reports whether the node answered.
func (f *Follower) follow(ctx context.Context, node Node) (stood bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(f.Patience, cancel)
	stream, err := node.Quota.Watch(ctx, &quotav1.WatchRequest{FromIndex: f.From, QuotaPrefix: f.QuotaPrefix, Holder: f.Holder})
	if err != nil {
		return false, err
	}
	defer func() { _ = stream.Close() }()
	stood = len(stream.ResponseHeader()) > 0 // waits until the subscription stands, or is refused
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

// take hands the events of a response to Each, without those that were taken before a connection was lost.
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
