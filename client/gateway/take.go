package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
)

// maxAsk is the largest body of /take and /slots, in bytes; maxItems how many quotas one may name.
const (
	maxAsk   = 64 << 10
	maxItems = 64
)

// takeItem is an amount of one quota; 0: 1.
type takeItem struct {
	Quota  string `json:"quota"`
	Amount int64  `json:"amount"`
}

// takeRequest is what /take and /slots are asked, in the query or as JSON.
type takeRequest struct {
	takeItem
	Items  []takeItem `json:"items"`
	Wait   string     `json:"wait"`
	Holder string     `json:"holder"`
	Class  string     `json:"class"`
	// Settle: what was really used will be told.
	Settle bool `json:"settle"`
}

// readTake reads a request of /take or /slots. What the body says counts more than the query.
func readTake(r *http.Request) (takeRequest, error) {
	var ask takeRequest
	query := r.URL.Query()
	ask.Quota, ask.Wait, ask.Holder, ask.Class = query.Get("quota"), query.Get("wait"), query.Get("holder"), query.Get("class")
	ask.Settle = query.Get("settle") == "1"
	if text := query.Get("amount"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return ask, fmt.Errorf("amount %s is not a whole number", identity.Quote(text))
		}
		ask.Amount = n
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxAsk+1))
	if err != nil || len(data) > maxAsk {
		return ask, errors.New("the body was not read, or is larger than 64 KiB")
	}
	if len(data) > 0 && (isJSON(r.Header) || isText(r.Header)) && data[0] == '{' {
		if err := json.Unmarshal(data, &ask); err != nil {
			return ask, fmt.Errorf("the body is not JSON of the form {\"quota\":\"t/core\",\"amount\":1}: %w", err)
		}
	}
	if ask.Quota != "" {
		ask.Items = append([]takeItem{ask.takeItem}, ask.Items...)
	}
	if len(ask.Items) == 0 || len(ask.Items) > maxItems {
		return ask, errors.New("name 1 to 64 quotas: ?quota=t/core&amount=1, or {\"items\":[{\"quota\":\"t/core\",\"amount\":1}]}")
	}
	for i, item := range ask.Items {
		if item.Amount == 0 {
			ask.Items[i].Amount = 1
		}
		if item.Amount < 0 || item.Quota == "" {
			return ask, errors.New("an item has a quota and an amount of at least 1")
		}
	}
	return ask, nil
}

// prepareTake names the caller of /take or /slots and finds what it asks. The answer is a refusal where it must not.
func (c *call) prepareTake(r *http.Request) (ask takeRequest, named bool, refusal dialect.Refusal, refused bool) {
	ask, err := readTake(r)
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
		c.required(item.Quota, "", item.Amount)
		d := &c.draws[len(c.draws)-1]
		d.amount = item.Amount // a caller who names an amount means it
	}
	named = caller.Source == "header" || caller.Source == "path" || caller.Source == "token"
	return ask, named, dialect.Refusal{}, false
}

// identifyAs names the caller of one of the gateway's own routes, who may say holder and class in the request; empty: by its headers.
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

// serveTake answers /take: 200 is the permission to call now.
func (g *Gateway) serveTake(w http.ResponseWriter, r *http.Request, c *call) {
	ask, named, refusal, refused := c.prepareTake(r)
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
	if op == nil || c.holdsSlots() {
		granted.settle(settlement{unsent: true})
		c.refuse(w, dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: " + c.draws[0].quota.Name +
			" is of kind slots: use POST /slots"})
		return
	}
	said := permission(op.Left(), granted.lease.Member())
	if ask.Settle {
		id := g.takes.keep(granted)
		if id == "" {
			granted.settle(settlement{unsent: true})
			c.refuse(w, dialect.Refusal{
				Status: http.StatusServiceUnavailable, RetryAfter: retrySoon, Message: "quotad: too many takes wait for their settlement",
			})
			return
		}
		said["id"] = id
	} else {
		granted.handOver()
	}
	writeJSON(w, said)
}

// permission says how long is left to make a call, rounded down, and of pools on which member it draws.
func permission(left time.Duration, member string) map[string]any {
	said := map[string]any{"spendIn": left.Truncate(time.Millisecond).String()}
	if member != "" {
		said["member"] = member
	}
	return said
}

// refuseTake answers a take that the cluster did not allow.
func (g *Gateway) refuseTake(w http.ResponseWriter, c *call, err error) {
	refusal, gone := c.refusalOf(err)
	switch {
	case gone:
		return
	case errors.Is(err, client.UnknownQuota):
		refusal.Status = http.StatusNotFound
	}
	c.refuse(w, refusal)
}

// takeFromBatch answers a take of one quota from what the gateway has consumed ahead for all processes of its machine; false: the
// quota is not known, so that the cluster has to say what is wrong.
func (g *Gateway) takeFromBatch(w http.ResponseWriter, r *http.Request, c *call) bool {
	d := c.draws[0]
	if _, known := g.catalog.Get(d.quota.Name); !known || d.quota.Slots || d.amount > 1<<31 {
		return false
	}
	limiter, err := g.batches.limiter(g, c.state.machine, c.caller.Class, d.quota.Name)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithDeadlineCause(r.Context(), c.until, errWaited)
	defer cancel()
	var taken *client.Taken
	if !time.Now().Before(c.until) {
		// Without a wait it is now or not at all.
		if taken = limiter.AllowTake(int(d.amount)); taken == nil {
			return false // the cluster says why not
		}
	} else if taken, err = limiter.WaitTake(ctx, int(d.amount)); err != nil {
		g.refuseTake(w, c, err)
		return true
	}
	writeJSON(w, permission(taken.Left(), taken.Member()))
	return true
}

// errWaited is the cause with which a wait ends.
var errWaited = errors.New("the wait is over")

// batches are what the gateway has consumed ahead, by class and quota. Batches are leased as <class>@<machine>.
type batches struct {
	mu       sync.Mutex
	clients  map[config.Class]*client.Client
	limiters map[batchKey]*client.Limiter
}

type batchKey struct {
	class config.Class
	quota string
}

func (b *batches) limiter(g *Gateway, machine string, class config.Class, quota string) (*client.Limiter, error) {
	if class == config.ClassNone {
		class = config.Standard
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := batchKey{class, quota}
	if l := b.limiters[key]; l != nil {
		return l, nil
	}
	if b.limiters == nil {
		b.clients, b.limiters = make(map[config.Class]*client.Client), make(map[batchKey]*client.Limiter)
	}
	asks := b.clients[class]
	if asks == nil {
		made, err := g.cluster.client(class.String()+"@"+machine, g.logger)
		if err != nil {
			return nil, err
		}
		asks, b.clients[class] = made, made
	}
	l := asks.Limiter(quota, client.LimiterClass(classOf(class)))
	b.limiters[key] = l
	return l, nil
}

func (b *batches) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all error
	for _, c := range b.clients {
		all = errors.Join(all, c.Close())
	}
	return all
}

// maxTakes bounds how many takes wait for their settlement.
const maxTakes = 10_000

// takeLife is how long a take waits for its settlement; without one it counts as it was asked.
const takeLife = 10 * time.Minute

const noSuchTake = "quotad: there is no such take: it was settled, or is older than 10m"

// takes are those that wait for their settlement, by id.
type takes struct {
	mu   sync.Mutex
	kept map[string]*keptTake
}

type keptTake struct {
	grant *grant
	timer *time.Timer
}

// keep remembers a take and returns its id; empty: too many are remembered.
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
		if late := t.remove(id); late != nil {
			late.handOver()
		}
	})}
	return id
}

// remove returns a take and forgets it; nil: there is none.
func (t *takes) remove(id string) *grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.kept[id]
	if kept == nil {
		return nil
	}
	kept.timer.Stop()
	delete(t.kept, id)
	return kept.grant
}

// reporting returns a take that still waits for its settlement, which is not made before the caller calls Done of its reports;
// nil: there is none.
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

// close releases what nobody will settle any more.
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

// serveSettle answers /take/settle.
func (g *Gateway) serveSettle(w http.ResponseWriter, r *http.Request, c *call) {
	var ask struct {
		ID     string     `json:"id"`
		Actual []takeItem `json:"actual"`
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxAsk))
	if err != nil || json.Unmarshal(data, &ask) != nil {
		c.refuse(w, dialect.Refusal{Status: http.StatusBadRequest, Message: `quotad: say {"id":"...","actual":[{"quota":"t/core","amount":1}]}`})
		return
	}
	actual := map[string]int64{}
	for _, item := range ask.Actual {
		if item.Amount < 0 {
			c.refuse(w, dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: an actual amount is at least 0"})
			return
		}
		actual[item.Quota] = item.Amount
	}
	granted := g.takes.remove(ask.ID)
	if granted == nil {
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
