package workload

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/quotad/quotad/jepsen/history"
)

// Agents is the profile of programs without knowledge of quotad: they call a model by the base URL of a gateway.
func Agents() Profile { return Profile{Name: "agents", Actors: 12, Pace: 8, Workers: 1} }

// agentWait is how long a call waits for a grant; AgentPatience bounds the whole call, work and repetitions included.
const (
	agentWait     = 5 * time.Second
	AgentPatience = 20 * time.Second
)

// agents call a model, streamed or not, and sometimes leave in the middle of an answer.
func agents(ctx context.Context, w *worker, number int) {
	r := w.rand(number)
	for count := 0; w.rest(ctx, r); count++ {
		asked := w.askModel(r, number, count)
		w.asked.Write(&asked)
	}
}

// askModel makes one call.
func (w *worker) askModel(r *rand.Rand, number, count int) (asked history.Asked) {
	asked = history.Asked{By: w.holder(number), ID: fmt.Sprintf("%s-%d", w.holder(number), count), Sent: history.Now()}
	defer func() { asked.Returned = history.Now() }()
	ctx, cancel := context.WithTimeout(context.Background(), AgentPatience)
	defer cancel()
	stream, leaves := r.IntN(2) == 0, r.IntN(100) < 15
	body := fmt.Sprintf(`{"model":"m","stream":%t,"max_tokens":50,"messages":[{"role":"user","content":"%s"}]}`, stream, asked.ID)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.Gateway+"/openai/v1/chat/completions",
		strings.NewReader(body))
	if err != nil {
		panic(fmt.Sprintf("the gateway's address: %v", err)) // a defect of the suite
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "X-Quotad-Holder": asked.By, "X-Quotad-Wait": agentWait.String(), agentHeader: asked.By,
		callHeader: asked.ID, workHeader: strconv.FormatInt(int64(r.IntN(800))*int64(time.Millisecond), 10),
	} {
		request.Header.Set(name, value)
	}
	response, err := w.local.Do(request)
	if err != nil {
		asked.Text = err.Error()
		return asked
	}
	defer func() { _ = response.Body.Close() }()
	asked.Status = response.StatusCode
	if stream && leaves && asked.Status == http.StatusOK {
		_, err = io.ReadFull(response.Body, make([]byte, 20))
		asked.Left = err == nil
		return asked
	}
	said, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		asked.Text = err.Error()
	case asked.Status != http.StatusOK:
		asked.Text = string(said)
	default:
		// An answer without an error counts as complete; the provider's log tells whether it was.
		asked.Whole = true
	}
	return asked
}
