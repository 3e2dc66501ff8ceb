package workload

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// ModelsPath is where the provider serves models: the base of a gateway's upstream.
const ModelsPath = "/llm"

// The quotas of the model, which gateways use, and the provider's limits for them.
const (
	ModelRequests = "openai/m/requests"
	ModelTokens   = "openai/m/tokens"
	ModelStreams  = "openai/m/streams"

	// ModelLimit is the limit per ModelPeriod, ModelSlots the number of concurrent calls.
	ModelLimit  = 60
	ModelPeriod = 5 * time.Second
	ModelSlots  = 6
)

// ModelQuotas are the quotas of the model.
func ModelQuotas() []*quotav1.Quota {
	return []*quotav1.Quota{
		{Name: ModelRequests, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: ModelLimit, Per: durationpb.New(ModelPeriod)}}},
		{
			Name: ModelTokens, Settle: quotav1.SettleMode_SETTLE_MODE_ACTUAL,
			Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: 20_000, Per: durationpb.New(ModelPeriod)}},
		},
		{Name: ModelStreams, Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: ModelSlots, Grace: durationpb.New(time.Second)}}},
	}
}

// The headers by which an agent tells the provider what to record and how long to work.
const (
	agentHeader = "X-Agent"
	callHeader  = "X-Agent-Call"
	workHeader  = "X-Agent-Work"
)

// models is the part of the provider that serves a model to callers with a key.
type models struct {
	// cutting makes it break streams off in the middle; cut counts these.
	cutting atomic.Bool
	cut     atomic.Int64

	mu   sync.Mutex
	keys []string
}

// Accept sets the valid keys.
func (p *Provider) Accept(keys ...string) {
	p.models.mu.Lock()
	defer p.models.mu.Unlock()
	p.models.keys = keys
}

// CutStreams makes the provider break streams off in the middle, or stops that.
func (p *Provider) CutStreams(on bool) { p.models.cutting.Store(on) }

// Cut is the number of streams that it broke off.
func (p *Provider) Cut() int64 { return p.models.cut.Load() }

func (m *models) accepts(authorization string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.keys, func(key string) bool { return authorization == "Bearer "+key })
}

// completion is what the provider reads of a request.
type completion struct {
	Stream  bool `json:"stream"`
	Options struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// modelUsage is the usage in each answer; less than any estimate.
const modelUsage = `"usage":{"prompt_tokens":9,"completion_tokens":5,"total_tokens":14}`

// serveModel serves a call of the model from its first byte here to its end, and records it as a request and as a stream.
func (p *Provider) serveModel(w http.ResponseWriter, r *http.Request) {
	spend := history.Spend{
		Quota: ModelRequests, Amount: 1, By: r.Header.Get(agentHeader), ID: r.Header.Get(callHeader), Began: history.Now(), Status: http.StatusOK,
	}
	defer func() {
		spend.Ended = history.Now()
		stream := spend
		stream.Quota = ModelStreams
		p.spends.Write(&spend)
		p.spends.Write(&stream)
	}()
	w.Header().Set("Content-Type", "application/json")
	no := func(status int, body string) {
		spend.Status = status
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
	if !p.models.accepts(r.Header.Get("Authorization")) {
		no(http.StatusUnauthorized, `{"error":{"message":"Incorrect API key provided","type":"invalid_request_error","code":"invalid_api_key"}}`)
		return
	}
	if p.trouble.Load() {
		w.Header().Set("Retry-After", "1")
		no(http.StatusTooManyRequests, `{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}`)
		return
	}
	var ask completion
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		no(http.StatusBadRequest, `{"error":{"message":"the body is no JSON"}}`)
		return
	}
	work, err := strconv.ParseInt(r.Header.Get(workHeader), 10, 64)
	if err != nil {
		work = 0
	}
	if ask.Stream {
		spend.Whole = p.stream(w, r, time.Duration(work), ask.Options.Usage)
		return
	}
	if spend.Whole = working(r, time.Duration(work)); spend.Whole {
		_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[{"index":0,"message":{"content":"hello"}}],`+modelUsage+`}`)
	}
}

// working takes a time, unless the caller leaves.
func working(r *http.Request, length time.Duration) bool {
	select {
	case <-time.After(length):
		return true
	case <-r.Context().Done():
		return false
	}
}

// pieces is the number of pieces of a stream.
const pieces = 5

// stream answers in pieces, and says whether all were written.
func (p *Provider) stream(w http.ResponseWriter, r *http.Request, work time.Duration, usage bool) bool {
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	for piece := range pieces {
		if !working(r, work/pieces) {
			return false
		}
		if piece == pieces/2 && p.models.cutting.Load() {
			p.models.cut.Add(1)
			panic(http.ErrAbortHandler)
		}
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d\"}}]}\n\n", piece)
		_ = control.Flush()
	}
	if usage {
		_, _ = io.WriteString(w, `data: {"choices":[],`+modelUsage+"}\n\n")
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
	return true
}
