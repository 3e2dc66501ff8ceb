package gateway

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
)

// maxAsk is the largest body of /take and /slots, in bytes; maxItems bounds the quotas of a request.
const (
	maxAsk   = 64 << 10
	maxItems = 64
)

// takeItem is an amount of one quota; nil: 1.
type takeItem struct {
	Quota  string `json:"quota"`
	Amount *int64 `json:"amount"`
}

func (i takeItem) amount() int64 {
	if i.Amount == nil {
		return 1
	}
	return *i.Amount
}

// takeRequest is a request of /take or /slots, in the query or as JSON.
type takeRequest struct {
	takeItem
	Items  []takeItem `json:"items"`
	Wait   string     `json:"wait"`
	Holder string     `json:"holder"`
	Class  string     `json:"class"`
	// Settle: the actual use will be reported.
	Settle bool `json:"settle"`
}

// The query parameters of /take and /slots.
var (
	takeQuery  = []string{"quota", "amount", "wait", "holder", "class", "settle"}
	slotsQuery = []string{"quota", "amount", "wait", "holder", "class"}
)

// readTake reads a request of /take or /slots. The body overrides the query.
func readTake(r *http.Request, known []string) (takeRequest, error) {
	var ask takeRequest
	query, err := readQuery(r, known)
	if err != nil {
		return ask, err
	}
	ask.Quota, ask.Wait, ask.Holder, ask.Class = query.Get("quota"), query.Get("wait"), query.Get("holder"), query.Get("class")
	if text := query.Get("settle"); text != "" {
		if ask.Settle, err = strconv.ParseBool(text); err != nil {
			return ask, fmt.Errorf("settle must be 1 or 0, not %s", identity.Quote(text))
		}
	}
	if text := query.Get("amount"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return ask, fmt.Errorf("amount must be a whole number, not %s", identity.Quote(text))
		}
		ask.Amount = &n
	}
	if err := readAsk(r, &ask, maxAsk, `{"quota":"t/core","amount":1}`); err != nil && !errors.Is(err, errNoBody) {
		return ask, err
	}
	switch {
	case ask.Quota != "":
		ask.Items = append([]takeItem{ask.takeItem}, ask.Items...)
	case ask.Amount != nil:
		return ask, errors.New("amount needs a quota: ?quota=t/core&amount=1")
	}
	if len(ask.Items) == 0 || len(ask.Items) > maxItems {
		return ask, errors.New("name 1 to 64 quotas: ?quota=t/core&amount=1, or {\"items\":[{\"quota\":\"t/core\",\"amount\":1}]}")
	}
	for _, item := range ask.Items {
		if item.amount() < 1 || item.Quota == "" {
			return ask, errors.New("each item needs a quota and an amount of at least 1")
		}
	}
	return ask, nil
}

// prepareTake identifies the caller of /take or /slots and adds its draws. It returns a refusal if the request is invalid or not
// allowed.
func (c *call) prepareTake(r *http.Request, known []string) (ask takeRequest, named bool, refusal dialect.Refusal, refused bool) {
	ask, err := readTake(r, known)
	if err != nil {
		return ask, false, dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: " + err.Error()}, true
	}
	if refusal, denied := c.identifyAs(r, ask.Holder, ask.Class); denied {
		return ask, false, refusal, true
	}
	caller := c.caller
	c.until = c.began.Add(c.state.waitBound(r.Header, caller.Class))
	if ask.Wait != "" {
		wait, ok := parseWait(ask.Wait)
		if !ok {
			return ask, false, dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: wait " + identity.Quote(ask.Wait) +
				" is not a duration"}, true
		}
		c.until = c.began.Add(min(wait, client.MaxWait))
	}
	for _, item := range ask.Items {
		c.required(item.Quota, "", item.amount())
		d := &c.draws[len(c.draws)-1]
		d.amount = item.amount() // an amount that the caller names is not cut
	}
	named = caller.Source == "header" || caller.Source == "path" || caller.Source == "token"
	return ask, named, dialect.Refusal{}, false
}

// identifyAs identifies the caller of one of the gateway's own routes. The request may name holder and class; if empty, the headers
// count.
func (c *call) identifyAs(r *http.Request, holder, class string) (dialect.Refusal, bool) {
	header := r.Header.Clone()
	if holder != "" {
		header.Set(identity.HolderHeader, holder)
	}
	if class != "" {
		header.Set(identity.ClassHeader, class)
	}
	return c.identify(r, header)
}

// serveTake serves /take: 200 permits making the call now.
func (g *Gateway) serveTake(w http.ResponseWriter, r *http.Request, c *call) {
	ask, named, refusal, refused := c.prepareTake(r, takeQuery)
	if !refused {
		refusal, refused = c.wrongKind(false)
	}
	if refused {
		c.refuse(w, refusal)
		return
	}
	if len(c.draws) == 1 && !named && !ask.Settle && g.takeFromBatch(w, r, c) {
		return
	}
	granted, err := c.acquire(r.Context(), max(time.Until(c.until), 0))
	if err != nil {
		g.refuseTake(w, c, err)
		return
	}
	op := granted.lease.Operation()
	if op == nil || len(op.Items()) < len(c.draws) { // slots that were not listed yet
		granted.settle(settlement{unsent: true})
		c.refuse(w, refusedKind(c.draws[0], false))
		return
	}
	said := permission(op.Left(), granted.lease.Member(), granted.lease.Forecast())
	if ask.Settle {
		id := g.takes.keep(granted)
		if id == "" {
			granted.settle(settlement{unsent: true})
			c.refuse(w, dialect.Refusal{
				Status: http.StatusServiceUnavailable, RetryAfter: retrySoon, Message: "quotad: too many takes wait for a settlement",
			})
			return
		}
		said["id"] = id
	} else {
		granted.handOver()
	}
	writeJSON(w, said)
}

// takeFromBatch serves a take of one quota from units that the gateway has consumed ahead for all processes of its machine. false: the
// quota is unknown, or none is at hand without a wait, so the cluster has to give the reason.
func (g *Gateway) takeFromBatch(w http.ResponseWriter, r *http.Request, c *call) bool {
	d := c.draws[0]
	if _, known := g.catalog.Get(d.quota.Name); !known || d.quota.Slots || d.amount > config.MostBatched {
		return false
	}
	taken, err := c.takeAhead(r.Context(), d, c.until)
	if err != nil {
		g.refuseTake(w, c, err)
		return true
	}
	if taken == nil {
		return false
	}
	taken.Done() // reporting on it uses a separate unit
	writeJSON(w, permission(taken.Left(), taken.Member(), taken.Forecast()))
	return true
}

// permission returns the answer to a take: the time left to make the call, rounded down, the pool member, and the forecast.
func permission(left time.Duration, member string, forecast *client.Forecast) map[string]any {
	said := map[string]any{"spendIn": spendIn(left)}
	if member != "" {
		said["member"] = member
	}
	if forecast != nil {
		said["forecast"] = predicted(forecast)
	}
	return said
}

// predicted converts a forecast to its form in answers; nil: there is none.
func predicted(f *client.Forecast) *dialect.Forecast {
	if f == nil {
		return nil
	}
	return &dialect.Forecast{
		Quota: f.Quota, ExhaustedIn: f.ExhaustedIn.Truncate(time.Millisecond).String(), Smaller: f.Smaller, Fallback: f.Fallback, Parks: f.Parks,
	}
}

// wrongKind refuses a take of slots, and slots of other kinds: those would be consumed instead of held.
func (c *call) wrongKind(slots bool) (dialect.Refusal, bool) {
	for _, d := range c.draws {
		_, known := c.gateway.catalog.Get(d.quota.Name)
		if known && d.quota.Slots != slots && len(d.quota.Members) == 0 { // a pool's kind shows in the lease
			return refusedKind(d, slots), true
		}
	}
	return dialect.Refusal{}, false
}

func refusedKind(d draw, slots bool) dialect.Refusal {
	message := " is of kind slots: use POST /slots"
	if slots {
		message = " is not of kind slots: use POST /take"
	}
	return dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: " + d.quota.Name + message}
}

// spendIn formats the time left to make a call, rounded down.
func spendIn(left time.Duration) string { return left.Truncate(time.Millisecond).String() }

// refuseTake answers a take that failed.
func (g *Gateway) refuseTake(w http.ResponseWriter, c *call, err error) {
	refusal, gone := c.refusalOf(err)
	switch {
	case gone:
		return
	case errors.Is(err, client.ReasonUnknownQuota):
		refusal.Status = http.StatusNotFound
	}
	c.refuse(w, refusal)
}

// maxTakes bounds the takes that wait for a settlement.
const maxTakes = 10_000

// takeLife is how long a take waits for a settlement; without one it counts as requested.
const takeLife = 10 * time.Minute

const noSuchTake = "quotad: unknown take: it was settled, or is older than 10m"

// takes are the takes that wait for a settlement, by id.
type takes struct {
	mu   sync.Mutex
	kept map[string]*keptTake
}

type keptTake struct {
	grant *grant
	timer *time.Timer
}

// keep records a take and returns its id; empty: there are too many.
func (t *takes) keep(granted *grant) string {
	id := rand.Text()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.kept) >= maxTakes {
		return ""
	}
	if t.kept == nil {
		t.kept = map[string]*keptTake{}
	}
	t.kept[id] = &keptTake{granted, time.AfterFunc(takeLife, func() {
		if late, _ := t.remove(id, nil); late != nil {
			late.handOver()
		}
	})}
	return id
}

// remove removes and returns a take, if it named all quotas of actual; foreign is one that it did not. nil: there is no such take.
func (t *takes) remove(id string, actual map[string]int64) (granted *grant, foreign string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.kept[id]
	if kept == nil {
		return nil, ""
	}
	for quota := range actual {
		if _, named := kept.grant.call.drawOf(quota); !named {
			return nil, quota
		}
	}
	kept.timer.Stop()
	delete(t.kept, id)
	return kept.grant, ""
}

// reporting returns a take that still waits for its settlement, which is delayed until the caller calls Done of its reports; nil: there
// is none.
func (t *takes) reporting(id string) *grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.kept[id]
	if kept == nil {
		return nil
	}
	kept.grant.reports.Add(1)
	return kept.grant
}

// close releases takes that can no longer be settled.
func (t *takes) close() {
	t.mu.Lock()
	kept := t.kept
	t.kept = nil
	t.mu.Unlock()
	for _, k := range kept {
		k.timer.Stop()
		k.grant.handOver()
	}
}

// settleForm is the form of a request of /take/settle.
const settleForm = `{"id":"...","actual":[{"quota":"t/core","amount":1}]}`

// readSettle reads a request of /take/settle.
func readSettle(r *http.Request) (id string, actual map[string]int64, err error) {
	var ask struct {
		ID     string     `json:"id"`
		Actual []takeItem `json:"actual"`
	}
	if _, err = readQuery(r, nil); err != nil {
		return "", nil, err
	}
	if err = readAsk(r, &ask, maxAsk, settleForm); err != nil {
		return "", nil, err
	}
	if ask.ID == "" {
		return "", nil, errors.New("the id of the take is missing: add " + settleForm)
	}
	actual = map[string]int64{}
	for _, item := range ask.Actual {
		if _, twice := actual[item.Quota]; twice {
			return "", nil, fmt.Errorf("the quota %s is repeated", identity.Quote(item.Quota))
		}
		if item.Quota == "" || item.Amount == nil || *item.Amount < 0 {
			return "", nil, errors.New("each item needs a quota, and an actual amount of at least 0")
		}
		actual[item.Quota] = *item.Amount
	}
	return ask.ID, actual, nil
}

// serveSettle serves /take/settle. A settlement with a quota that the take did not name is refused, and the take stays.
func (g *Gateway) serveSettle(w http.ResponseWriter, r *http.Request, c *call) {
	id, actual, err := readSettle(r)
	if err != nil {
		c.refuse(w, dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: " + err.Error()})
		return
	}
	granted, foreign := g.takes.remove(id, actual)
	switch {
	case foreign != "":
		c.refuse(w, dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: the take did not name the quota " + identity.Quote(foreign)})
		return
	case granted == nil:
		c.refuse(w, dialect.Refusal{Status: http.StatusNotFound, Message: noSuchTake})
		return
	}
	granted.settle(settlement{actual: actual})
	writeJSON(w, map[string]any{})
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}
