package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/quotad/quotad/client/gateway/dialect"
)

// Explanation describes how a call would be treated, without sending it.
type Explanation struct {
	// Upstream and URL are its destination.
	Upstream string `json:"upstream,omitempty"`
	URL      string `json:"url,omitempty"`
	// Holder and Class are the caller's; Source is what named the holder. An empty class is the holder's own.
	Holder string `json:"holder,omitempty"`
	Class  string `json:"class,omitempty"`
	Source string `json:"source,omitempty"`
	// Model is the name that the caller sent, QuotaModel the one in the quotas' names.
	Model      string `json:"model,omitempty"`
	QuotaModel string `json:"quotaModel,omitempty"`
	// Draws are the quotas and the amount requested of each.
	Draws []ExplainedDraw `json:"draws,omitempty"`
	// Ungoverned is why it draws on nothing: path or observe; empty: it draws on something.
	Ungoverned string `json:"ungoverned,omitempty"`
	// Wait is its longest wait.
	Wait Length `json:"wait"`
	// Key is the name of the key to inject; empty for pools: the key is that of the granted member.
	Key string `json:"key,omitempty"`
	// Batch is the holder of the batches that serve the call; Unbatched is why it asks the cluster itself although batch: true is set.
	Batch     string `json:"batch,omitempty"`
	Unbatched string `json:"unbatched,omitempty"`
	// Status and Refusal are the answer if the call would not be sent.
	Status  int    `json:"status,omitempty"`
	Refusal string `json:"refusal,omitempty"`
}

// ExplainedDraw is a call's draw on a quota.
type ExplainedDraw struct {
	Quota  string `json:"quota"`
	Part   string `json:"part"`
	Amount int64  `json:"amount"`
	// Cut: the estimate is above what can ever be granted.
	Cut bool `json:"cut,omitempty"`
	// Members are a pool's members: each has the name of the key whose quota it is.
	Members []MemberStatus `json:"members,omitempty"`
}

// Explain describes how a request would be treated. Its URL is the gateway's own path and query. It lists the quotas first.
func (g *Gateway) Explain(ctx context.Context, r *http.Request) (Explanation, error) {
	if err := g.readCatalog(ctx); err != nil {
		return Explanation{}, err
	}
	s := g.state.Load()
	c := &call{gateway: g, state: s, began: time.Now(), header: r.Header, query: r.URL.RawQuery}
	defer func() {
		if c.release != nil {
			c.release()
		}
	}()
	refused := func(refusal dialect.Refusal) (Explanation, error) {
		out := c.explanation()
		out.Status, out.Refusal = refusal.Status, refusal.Message
		return out, nil
	}
	to, ok := s.route(r)
	if !ok || to.own != "" {
		return refused(dialect.Refusal{Status: http.StatusNotFound, Message: "no upstream has this path; begin it with one of " + s.prefixes()})
	}
	c.route = to
	if refusal, denied := c.identify(r, r.Header); denied {
		return refused(refusal)
	}
	c.path = c.upstream.dialect.Rewrite(c.path)
	c.op = c.upstream.dialect.Operation(r.Method, c.path)
	if err := c.readBody(r); err != nil {
		return refused(bodyRefusal(err))
	}
	c.until = c.began.Add(s.waitBound(r.Header, c.caller.Class))
	if refusal, no := c.prepare(r); no {
		return refused(refusal)
	}
	return c.explanation(), nil
}

func (c *call) explanation() Explanation {
	out := Explanation{
		Holder: c.caller.Holder, Class: c.caller.Class.String(), Source: c.caller.Source, Model: c.model, QuotaModel: c.target.Model,
		Ungoverned: c.ungoverned,
	}
	if c.upstream != nil {
		out.Upstream, out.URL = c.upstream.name, c.url(c.path, "").String()
	}
	if !c.until.IsZero() {
		out.Wait = Length(c.until.Sub(c.began))
	}
	if c.key != nil {
		out.Key = c.key.Name
	}
	if _, why, batched := c.batchOf(); batched {
		out.Batch = batchHolder(c.caller.Class, c.state.machine)
	} else {
		out.Unbatched = why
	}
	for _, d := range c.draws {
		out.Draws = append(out.Draws, ExplainedDraw{
			Quota: d.quota.Name, Part: d.part, Amount: d.amount, Cut: d.cut, Members: c.gateway.membersOf(d.quota),
		})
	}
	return out
}
