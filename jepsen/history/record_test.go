package history

import (
	"context"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestRecord_TellsCancellationFromTimeout: the record distinguishes a canceled call from one that timed out.
func TestRecord_TellsCancellationFromTimeout(t *testing.T) {
	silent := roundTrip(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	})
	for name, c := range map[string]struct {
		canceledAfter time.Duration
		want          bool
	}{"by its caller": {time.Second, true}, "by its time": {time.Hour, false}} {
		path := filepath.Join(t.TempDir(), "calls.jsonl")
		to, err := Create[Call](path)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			service := quotav1connect.NewQuotaServiceClient(&http.Client{Transport: &Recorder{Next: silent, Client: "c", To: to}}, "http://n1")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			defer time.AfterFunc(c.canceledAfter, cancel).Stop()
			if _, err := service.GetQuota(ctx, &quotav1.GetQuotaRequest{Name: "q"}); err == nil {
				t.Errorf("%s: it was answered", name)
			}
		})
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		lines, err := All[Call](path)
		if err != nil || len(lines) != 1 || lines[0].Error == nil || lines[0].Error.Canceled != c.want {
			t.Errorf("%s: %+v, %v", name, lines, err)
		}
	}
}
