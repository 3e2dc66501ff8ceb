package workload

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// watcher follows the events of all quotas at any node that answers, and resumes where its last stream ended.
func watcher(ctx context.Context, w *worker, number int) {
	r := w.rand(number)
	var next uint64
	for stream := 1; ctx.Err() == nil; stream++ {
		node := w.Nodes[r.IntN(len(w.Nodes))]
		service := quotav1connect.NewQuotaServiceClient(&http.Client{Transport: w.cluster}, node)
		next = w.follow(ctx, service, w.holder(number), stream, next)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(100+r.IntN(400)) * time.Millisecond):
		}
	}
}

// follow reads one stream to its end and returns the index at which to resume; 0 if that is gone.
func (w *worker) follow(ctx context.Context, service quotav1connect.QuotaServiceClient, name string, number int, from uint64) uint64 {
	stream, err := service.Watch(ctx, &quotav1.WatchRequest{FromIndex: from})
	next := from
	if err == nil {
		defer func() { _ = stream.Close() }()
		for stream.Receive() {
			message, marshalErr := proto.Marshal(stream.Msg())
			if marshalErr != nil {
				err = marshalErr
				break
			}
			w.seen.Write(&history.Seen{Watcher: name, Stream: number, From: from, Message: message, At: history.Now()})
			if next = stream.Msg().Meta.Index; !stream.Msg().More {
				next++
			}
		}
		err = errors.Join(err, stream.Err())
	}
	if err == nil {
		err = io.EOF
	}
	described := history.ErrorOf(err)
	w.seen.Write(&history.Seen{Watcher: name, Stream: number, From: from, End: described, At: history.Now()})
	if quotav1.Reason(described.Reason) == quotav1.Reason_REASON_COMPACTED {
		return 0
	}
	return next
}
