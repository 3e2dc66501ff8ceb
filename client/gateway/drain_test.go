package gateway_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/quotatest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestA22_DrainsAreBounded: at most 64 answers are read at the same time after their clients have left, each for at most a minute. The
// others are cancelled at once.
func TestA22_DrainsAreBounded(t *testing.T) {
	const most, clients = 64, 66
	first := frame("contentBlockDelta", `{"contentBlockIndex":0,"delta":{"text":"Hi"}}`)
	var ended chan time.Time // created in the bubble
	with := setting{
		dialects: []string{"bedrock"}, quotas: []*quotav1.Quota{quotatest.Rate("bedrock/m/requests", 1000, time.Hour)},
		answer: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
			for range 5 { // so that the gateway notices that the client has left
				_, _ = io.WriteString(w, first)
				_ = http.NewResponseController(w).Flush()
				<-time.After(time.Second)
			}
			<-r.Context().Done()
			ended <- time.Now()
		},
	}
	inBubble(t, with, func(t *testing.T, b *bubble) {
		ended = make(chan time.Time, clients)
		var open []net.Conn
		for range clients {
			connection := b.send(http.MethodPost, "/bedrock/model/m/converse-stream", `{"messages":[]}`, "Content-Type", "application/json")
			response, err := http.ReadResponse(bufio.NewReader(connection), nil)
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatal(response, err)
			}
			if _, err := io.ReadFull(response.Body, make([]byte, len(first))); err != nil {
				t.Fatal(err)
			}
			open = append(open, connection)
		}
		left := time.Now()
		for _, connection := range open {
			_ = connection.Close()
		}
		for i := range clients {
			least := time.Duration(0)
			if i >= clients-most {
				least = time.Minute
			}
			if took := (<-ended).Sub(left); took < least || took > least+5*time.Second {
				t.Errorf("answer %d ended after %v, want %v", i, took, least)
			}
		}
		b.until("the calls are logged", time.Second, func() bool { return strings.Count(b.log.String(), "end=gone") == clients })
		b.consumed("bedrock/m/requests", clients)
	})
}
