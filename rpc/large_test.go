package rpc_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// longLease makes a lease on 64 quotas with names of 200 bytes: no lease is larger.
func longLease(t *testing.T, n *testNode) *quotav1.Lease {
	t.Helper()
	const quotas = 64
	var definitions []*quotav1.Quota
	var items []*quotav1.Item
	for i := range quotas {
		name := fmt.Sprintf("%s%02d", strings.Repeat("q", 198), i)
		definitions = append(definitions, &quotav1.Quota{
			Name: name, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: 1 << 40, Per: durationpb.New(time.Hour)}},
		})
		items = append(items, &quotav1.Item{Quota: name, Amount: new(int64(1) << 39)})
	}
	if _, err := quotav1connect.NewAdminServiceClient(h2c(t), n.url).ApplyQuotas(t.Context(),
		&quotav1.ApplyQuotasRequest{Quotas: definitions}); err != nil {
		t.Fatal(err)
	}
	api := quotav1connect.NewQuotaServiceClient(h2c(t), n.url)
	granted, err := api.Reserve(t.Context(), &quotav1.ReserveRequest{Holder: "h", Items: items})
	if err != nil || granted.GetLease() == nil {
		t.Fatalf("%v %v", granted, err)
	}
	return granted.GetLease()
}

// TestBatch_LargestAnswerFits: a Batch that names 64 quotas with names of 200 bytes in each result is answered, where a caller may have
// that much memory. If the answer were too large, the Batch would have taken effect and its caller would not know what it did. A third of
// the largest Batch shows how large the whole would be.
func TestBatch_LargestAnswerFits(t *testing.T) {
	const quotas, commands, most = 64, 1400, 4096
	n := newNodes(t, 1, func(c *rpc.Config) { c.RequestBytes = 2 << 30 })[0]
	granted := longLease(t, n)
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url, connect.WithAcceptCompression("gzip", nil, nil))
	batch := &quotav1.BatchRequest{Commands: make([]*quotav1.Command, commands)}
	for i := range batch.Commands { // a repeated operation gets its first answer again
		batch.Commands[i] = &quotav1.Command{Kind: &quotav1.Command_Consume{Consume: &quotav1.ConsumeRequest{
			Lease: granted.Id, Fence: granted.Fence, Op: 1,
		}}}
	}
	res, err := api.Batch(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	if last := res.Results[commands-1].GetConsume().GetOperation(); len(last.GetItems()) != quotas {
		t.Errorf("the last of %d results: %v", len(res.Results), last)
	}
	if size := proto.Size(res) / commands * most; size < 50<<20 || size > 64<<20 {
		t.Errorf("%d bytes for %d commands; 64 MiB are the most", size, most)
	}
}
