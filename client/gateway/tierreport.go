package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
	"github.com/quotad/quotad/rpc/signals"
)

// maxAnswer is the largest body of /report, in bytes: headers, and more of an answer's body than is parsed.
const maxAnswer = 256 << 10

// reportRequest is a request of /report. The JSON is the provider's answer, in the form of a node's /report; the query selects a take,
// quotas or an upstream.
type reportRequest struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Dialect string            `json:"dialect"`

	id       string
	quotas   []string
	upstream *upstream
	holder   string
	class    string
}

// reportQuery are the query parameters of /report.
var reportQuery = []string{"id", "quota", "upstream", "holder", "class"}

// readReport reads a request of /report.
func (s *state) readReport(r *http.Request) (ask reportRequest, err error) {
	query, err := readQuery(r, reportQuery, "quota")
	if err != nil {
		return ask, err
	}
	ask.id, ask.quotas, ask.holder, ask.class = query.Get("id"), query["quota"], query.Get("holder"), query.Get("class")
	if name := query.Get("upstream"); name != "" {
		if ask.upstream = s.upstreams[name]; ask.upstream == nil {
			return ask, fmt.Errorf("unknown upstream %s; known: %s", identity.Quote(name),
				strings.Join(slices.Sorted(maps.Keys(s.upstreams)), ", "))
		}
	}
	if err := readAsk(r, &ask, maxAnswer, `{"status":429,"headers":{"retry-after":"30"},"body":"..."}`); err != nil {
		return ask, err
	}
	if ask.Status < 100 || ask.Status > 599 {
		return ask, errors.New("status must be the status of the provider's answer, 100 to 599")
	}
	if ask.Dialect != "" {
		_, err = signals.DialectNamed(ask.Dialect)
	}
	return ask, err
}

// answer returns the provider's answer, for the cluster, and the dialect in which this gateway reads it.
func (ask reportRequest) answer() (client.Answer, signals.Dialect) {
	reads := signals.Auto
	if ask.upstream != nil {
		reads = dialect.Operation{Dialect: ask.upstream.dialect}.Signals()
	}
	if named, err := signals.DialectNamed(ask.Dialect); err == nil {
		reads = named
	}
	header := make(http.Header, len(ask.Headers))
	for name, value := range ask.Headers {
		for line := range strings.SplitSeq(value, "\n") {
			header.Add(name, strings.TrimSpace(line))
		}
	}
	return client.Answer{Status: ask.Status, Header: header, Body: []byte(ask.Body), Dialect: reads.Name()}, reads
}

// serveReport serves /report, for calls that did not pass through the gateway: it reports the provider's answer to the cluster. A take
// that waits for its settlement is reported on by its id. Otherwise the gateway reserves one unit of the quotas for the report, and
// returns it afterwards.
func (g *Gateway) serveReport(w http.ResponseWriter, r *http.Request, c *call) {
	ask, err := c.state.readReport(r)
	if err != nil {
		c.refuse(w, dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: " + err.Error()})
		return
	}
	if refusal, denied := c.identifyAs(r, ask.holder, ask.class); denied {
		c.refuse(w, refusal)
		return
	}
	answer, reads := ask.answer()
	said := reads.ObserveAnswer(time.Now(), answer.Status, answer.Header, answer.Body)
	if ask.id != "" {
		granted := g.takes.reporting(ask.id)
		if granted == nil {
			c.refuse(w, dialect.Refusal{Status: http.StatusNotFound, Message: noSuchTake})
			return
		}
		defer granted.reports.Done()
		c.tell(w, r, granted, answer)
		return
	}
	quotas := ask.quotas
	if len(quotas) == 0 {
		quotas = g.quotasOf(ask.upstream, said)
	}
	if len(quotas) == 0 || len(quotas) > maxItems {
		c.refuse(w, dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: the answer names no limit that matches a quota of the " +
			"upstream: name 1 to 64 quotas (?quota=t/core), or a take that was asked with settle=1 (?id=...)"})
		return
	}
	if !g.worthReport(said, quotas) {
		writeJSON(w, map[string]any{"quotas": []any{}})
		return
	}
	for _, quota := range quotas {
		c.required(quota, "", 1)
		c.draws[len(c.draws)-1].amount = 1
	}
	for _, d := range c.draws {
		if len(d.quota.Members) > 0 {
			c.refuse(w, dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: " + d.quota.Name + " is a pool: report on the quota of " +
				"the member that made the call; " + memberNames(d.quota)})
			return
		}
	}
	granted, err := c.acquire(r.Context(), 0)
	if err != nil {
		g.refuseTake(w, c, err)
		return
	}
	defer granted.settle(settlement{unsent: true})
	c.tell(w, r, granted, answer)
}

// quotasOf returns the quotas of an upstream named like the limits in a provider's statements, each once.
func (g *Gateway) quotasOf(u *upstream, said []signals.Signal) (quotas []string) {
	if u == nil {
		return nil
	}
	prefix := cmp.Or(u.config.Quotas, u.name)
	for _, s := range said {
		name := prefix + "/" + s.Resource
		if _, known := g.catalog.Get(name); s.Resource != "" && known && !slices.Contains(quotas, name) {
			quotas = append(quotas, name)
		}
	}
	return quotas
}

// worthReport reports whether the cluster should learn of an answer now: a refusal, or counts of a quota that were not reported a
// moment ago.
func (g *Gateway) worthReport(said []signals.Signal, quotas []string) bool {
	now := time.Now()
	worth := false
	for _, of := range signals.Attribute(said, quotas) {
		worth = of.Class != signals.OK || g.reports.due(of.Quota, of.Signal, now) || worth
	}
	return worth
}

// reportedQuota is the effect of a report on a quota, in the form of a node's /report.
type reportedQuota struct {
	Quota        string `json:"quota"`
	CooldownLeft string `json:"cooldownLeft,omitempty"`
	Attempt      int    `json:"attempt,omitempty"`
	ResetLearned bool   `json:"resetLearned,omitempty"`
}

// tell reports an answer on a grant, and writes the effect.
func (c *call) tell(w http.ResponseWriter, r *http.Request, granted *grant, answer client.Answer) {
	op := granted.lease.Operation()
	if op == nil || granted.call.holdsSlots() {
		c.refuse(w, dialect.Refusal{Status: http.StatusBadRequest, Message: "quotad: " + granted.call.draws[0].quota.Name +
			" is of kind slots: report on a quota that is taken"})
		return
	}
	reported, err := op.ReportAnswer(r.Context(), answer)
	switch {
	case errors.Is(err, client.ErrLeaseExpired), errors.Is(err, client.ErrLeaseReleased), errors.Is(err, client.ReasonStaleFence):
		c.refuse(w, dialect.Refusal{Status: http.StatusNotFound, Message: noSuchTake})
		return
	case err != nil:
		c.gateway.refuseTake(w, c, err)
		return
	}
	quotas := make([]reportedQuota, len(reported))
	for i, quota := range reported {
		quotas[i] = reportedQuota{Quota: quota.Quota, Attempt: quota.Cooldowns, ResetLearned: quota.ResetLearned}
		if quota.CooldownLeft > 0 {
			quotas[i].CooldownLeft = quota.CooldownLeft.String()
		}
	}
	writeJSON(w, map[string]any{"quotas": quotas})
}
