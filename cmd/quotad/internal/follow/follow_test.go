package follow

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// log is a node's events: the number of events of each index, from 1. A node sends at most `most` of them in a response. It
// drops each connection after the next number of responses in cuts.
type log struct {
	quotav1connect.UnimplementedQuotaServiceHandler
	events []int
	most   int
	// applied is the last index that the node has applied when reading begins.
	applied uint64

	mu   sync.Mutex
	cuts []int
}

func (l *log) nextCut() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.cuts) == 0 {
		return 1 << 30
	}
	cut := l.cuts[0]
	l.cuts = l.cuts[1:]
	return cut
}

// ListQuotas implements QuotaService.
func (l *log) ListQuotas(context.Context, *quotav1.ListQuotasRequest) (*quotav1.ListQuotasResponse, error) {
	return &quotav1.ListQuotasResponse{Meta: &quotav1.Meta{Index: l.applied}}, nil
}

// Watch implements QuotaService.
func (l *log) Watch(_ context.Context, request *quotav1.WatchRequest, stream *connect.ServerStream[quotav1.WatchResponse]) error {
	if err := stream.Send(nil); err != nil {
		return err
	}
	cut := l.nextCut()
	for index := max(int(request.GetFromIndex()), 1); index <= len(l.events); index++ {
		for at := 0; ; at += l.most {
			if cut--; cut < 0 {
				return connect.NewError(connect.CodeUnavailable, errors.New("the node stops"))
			}
			response := &quotav1.WatchResponse{Meta: &quotav1.Meta{Index: uint64(index)}, More: l.events[index-1]-at > l.most}
			for n := at; n < min(at+l.most, l.events[index-1]); n++ {
				response.Events = append(response.Events, &quotav1.Event{Amount: int64(n)})
			}
			if err := stream.Send(response); err != nil {
				return err
			}
			if !response.More {
				break
			}
		}
	}
	return connect.NewError(connect.CodeOutOfRange, errors.New("the end of the log"))
}

// read follows a node from an index (0: from now) to the end of its log. It returns the events and the number of times it resumed.
func read(tb testing.TB, l *log, from uint64) (got []string, resumed int) {
	tb.Helper()
	mux := http.NewServeMux()
	mux.Handle(quotav1connect.NewQuotaServiceHandler(l))
	server := httptest.NewServer(mux)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	f := &Follower{
		Nodes: []Node{{Address: "n1", Quota: quotav1connect.NewQuotaServiceClient(client, server.URL)}}, From: from, Patience: time.Minute,
		Each: func(meta *quotav1.Meta, event *quotav1.Event) error {
			got = append(got, fmt.Sprintf("%d/%d", meta.GetIndex(), event.GetAmount()))
			return nil
		},
		Tell: func(_ string, _ uint64, err error) {
			if err != nil {
				resumed++
			}
		},
	}
	if err := f.Run(context.Background()); connect.CodeOf(err) != connect.CodeOutOfRange {
		tb.Fatalf("it ended with %v", err)
	}
	return got, resumed
}

// TestFollower_ReadsEachEventOnce: wherever connections are cut, the follower reads each event once, in order.
func TestFollower_ReadsEachEventOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := &log{
			events: rapid.SliceOfN(rapid.IntRange(0, 7), 1, 12).Draw(rt, "events"), most: rapid.IntRange(1, 4).Draw(rt, "most"),
			cuts: rapid.SliceOfN(rapid.IntRange(0, 9), 0, 2).Draw(rt, "cuts"),
		}
		var want []string
		for i, n := range l.events {
			for k := range n {
				want = append(want, fmt.Sprintf("%d/%d", i+1, k))
			}
		}
		if got, _ := read(t, l, 1); !slices.Equal(got, want) {
			rt.Fatalf("it read %v, want %v", got, want)
		}
	})
}

// TestFollower_ReportsLostConnection: the follower resumes after a cut within one index, and reports it.
func TestFollower_ReportsLostConnection(t *testing.T) {
	got, resumed := read(t, &log{events: []int{1, 5, 1}, most: 2, cuts: []int{2}}, 1)
	if strings.Join(got, " ") != "1/0 2/0 2/1 2/2 2/3 2/4 3/0" || resumed != 1 {
		t.Errorf("it read %v, resumed %d times", got, resumed)
	}
}

// TestFollower_FromNowMissesNothing: reading continues from where it began if the connection is lost before the first event.
func TestFollower_FromNowMissesNothing(t *testing.T) {
	got, resumed := read(t, &log{events: []int{1, 1, 1, 1}, most: 1, applied: 2, cuts: []int{0}}, 0)
	if strings.Join(got, " ") != "3/0 4/0" || resumed != 1 {
		t.Errorf("it read %v, resumed %d times", got, resumed)
	}
}

// TestFollower_Ends: an error of the reader, a refusal by the cluster and the end of the context each end Run. If no node
// answers, Run ends when Patience is over.
func TestFollower_Ends(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(quotav1connect.NewQuotaServiceHandler(&log{events: []int{1, 1}, most: 1}))
	server := httptest.NewServer(mux)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	follower := func(url string, patience time.Duration) *Follower {
		return &Follower{
			Nodes: []Node{{Address: "n1", Quota: quotav1connect.NewQuotaServiceClient(client, url)}}, Patience: patience, From: 1,
			Each: func(*quotav1.Meta, *quotav1.Event) error { return nil }, Tell: func(string, uint64, error) {},
		}
	}
	enough := errors.New("enough")
	f := follower(server.URL, time.Minute)
	f.Each = func(*quotav1.Meta, *quotav1.Event) error { return enough }
	if err := f.Run(t.Context()); !errors.Is(err, enough) {
		t.Errorf("an error of the reader: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f = follower(server.URL, time.Minute)
	f.Each = func(*quotav1.Meta, *quotav1.Event) error { cancel(); return nil }
	if err := f.Run(ctx); err != nil {
		t.Errorf("the end of the context: %v", err)
	}
	gone := httptest.NewServer(mux)
	gone.Close()
	if err := follower(gone.URL, 50*time.Millisecond).Run(t.Context()); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("no node: %v", err)
	}
}
