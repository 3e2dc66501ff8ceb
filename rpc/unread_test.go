package rpc_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// opsPort serves the operators' port of a node, and returns its URL.
func opsPort(t *testing.T, n *testNode) (url string) {
	t.Helper()
	listener, err := rpc.Listen("127.0.0.1:0", rpc.DefaultMaxOpsConnections)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewHTTPServer(n.server.OpsHandler(false), nil, hclog.NewNullLogger())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String()
}

// heldBody is a body whose last byte waits for release.
type heldBody struct {
	first, last io.Reader
	release     <-chan struct{}
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) {
	if n, err := b.first.Read(p); n > 0 || err == nil {
		return n, err
	}
	<-b.release
	return b.last.Read(p)
}

// unreadBatches sends Batches whose last bytes arrive together, and leaves their answers unread. It returns the status of each.
func unreadBatches(
	t *testing.T, n *testNode, secret string, count int, ready func(), commands []byte,
) (statuses map[int]int, refusals []string) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 16 << 10}}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: withToken{transport, secret}}
	release := make(chan struct{})
	type answer struct {
		res *http.Response
		err error
	}
	answers := make(chan answer, count)
	for range count {
		last := len(commands) - 1
		body := &heldBody{bytes.NewReader(commands[:last]), bytes.NewReader(commands[last:]), release}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url+"/quota.v1.QuotaService/Batch", body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = int64(len(commands))
		req.Header.Set("Content-Type", "application/proto")
		go func() {
			res, err := client.Do(req)
			answers <- answer{res, err}
		}()
	}
	ready()
	close(release)
	statuses = map[int]int{}
	for range count {
		got := <-answers
		if got.err != nil {
			t.Fatal(got.err)
		}
		t.Cleanup(func() { _ = got.res.Body.Close() })
		statuses[got.res.StatusCode]++
		if got.res.StatusCode != http.StatusOK {
			text, err := io.ReadAll(got.res.Body)
			if err != nil {
				t.Fatal(err)
			}
			refusals = append(refusals, string(text))
		}
	}
	return statuses, refusals
}

// TestAnswers_UnreadOfOneCallerLeaveRoom: a caller leaves the answers of many Batches of many empty commands unread. Beyond its part, a
// Batch is refused before any command runs. Others are served, and so is an operator at both ports.
func TestAnswers_UnreadOfOneCallerLeaveRoom(t *testing.T) {
	const batches, commands = 64, 4096
	n, secrets := guarded(t, func(c *rpc.Config) { c.RequestBytes = 128 << 20 }) // as on a node with 2 GiB
	ops := opsPort(t, n)
	empty := bytes.Repeat([]byte{1<<3 | 2, 0}, commands)
	statuses, refusals := unreadBatches(t, n, secrets["hostile"], batches, func() {
		eventually(t, "the bodies are there", func() bool {
			return inUse(t, n, secrets["operator"], "request_bytes") >= batches*(commands*2-1)*8
		})
	}, empty)
	if served := statuses[http.StatusOK]; served == 0 || served > 16 || served+statuses[http.StatusTooManyRequests] != batches {
		t.Errorf("statuses: %v", statuses)
	}
	for _, refusal := range refusals {
		if !strings.Contains(refusal, "request_bytes") {
			t.Errorf("a refusal: %q", refusal)
			break
		}
	}
	if used := inUse(t, n, secrets["operator"], "request_bytes"); used > 64<<20 {
		t.Errorf("%d bytes are used by one caller", used)
	}
	other, _ := apisAs(t, n.url, secrets["other"])
	res, err := other.Reserve(t.Context(), &quotav1.ReserveRequest{Holder: "o", Items: []*quotav1.Item{{Quota: "t/core"}}})
	if err != nil || res.GetLease() == nil {
		t.Errorf("another caller: %v %v", res, err)
	}
	for _, url := range []string{n.url, ops} {
		_, operator := apisAs(t, url, secrets["operator"])
		if _, err := operator.OverrideQuota(t.Context(), &quotav1.OverrideQuotaRequest{
			Name: "t/core", Limit: new(int64(0)), Duration: durationpb.New(time.Minute),
		}); err != nil {
			t.Errorf("the operator at %s: %v", url, err)
		}
	}
}

// TestBatch_TooLargeAnswerRunsNothing: a Batch whose answer takes more memory than its caller may have is refused as too large
// before any command runs, however short it is. Smaller ones are served.
func TestBatch_TooLargeAnswerRunsNothing(t *testing.T) {
	n := newNodes(t, 1, func(c *rpc.Config) { c.RequestBytes = 64 << 20 })[0]
	granted := longLease(t, n)
	api := quotav1connect.NewQuotaServiceClient(h2c(t), n.url)
	batch := &quotav1.BatchRequest{}
	for range 400 { // 16 KB for each answer, of 3.5 MB that a caller may have
		batch.Commands = append(batch.Commands, &quotav1.Command{Kind: &quotav1.Command_Consume{Consume: &quotav1.ConsumeRequest{
			Lease: granted.Id, Fence: granted.Fence, Op: 1,
		}}})
	}
	before := ledgerHash(t, n)
	_, err := api.Batch(t.Context(), batch)
	if info := infoOf(err); info.GetReason() != quotav1.Reason_REASON_TOO_LARGE || !info.NotAccepted {
		t.Errorf("%d bytes of commands: %v", proto.Size(batch), err)
	}
	if ledgerHash(t, n) != before {
		t.Error("the ledger changed")
	}
	batch.Commands = batch.Commands[:100]
	if res, err := api.Batch(t.Context(), batch); err != nil || len(res.Results[99].GetConsume().GetOperation().GetItems()) != 64 {
		t.Errorf("a quarter of it: %v", err)
	}
}
