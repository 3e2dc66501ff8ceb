package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/catalog"
	"github.com/quotad/quotad/client/internal/unpack"
)

// insteadOfHeader names the requested model, if another model of the provider answers.
const insteadOfHeader = "X-Quotad-Instead-Of"

// fallbacks returns the models that may answer instead of the call's, in order. There are none if the configuration names none for the
// caller, or if the body cannot be changed. Nor are there any if the call continues another answer: its id or signed reasoning belongs
// to one model.
func (c *call) fallbacks() []string {
	if c.insteadOf != "" || c.ask == nil || c.ask.Prior != "" || c.body == nil || unpack.Encoding(c.header) != "" {
		return nil
	}
	rule, ok := catalog.Rule(c.state.config.Models, c.upstream.name, c.model)
	if !ok || len(rule.Fallback) == 0 || !rule.For.Selects(c.caller.Class, c.caller.Holder) {
		return nil
	}
	for _, signed := range [][]byte{
		[]byte(`"signature"`), []byte(`"thoughtSignature"`), []byte(`"thought_signature"`), []byte(`"encrypted_content"`),
		[]byte(`"redacted_thinking"`),
	} {
		if bytes.Contains(c.body.data, signed) {
			return nil
		}
	}
	return rule.Fallback
}

// acquireAny asks for the call's amounts. If the cluster refuses them, or predicts that they will soon be exhausted, the first
// configured fallback model that is granted at once answers instead. If none is, the call waits for its own model.
func (c *call) acquireAny(ctx context.Context) (*grant, error) {
	wait := max(time.Until(c.until), 0)
	others := c.fallbacks()
	if len(others) == 0 {
		return c.acquire(ctx, wait)
	}
	granted, err := c.acquire(ctx, 0)
	switch {
	case err == nil && (granted.lease == nil || granted.lease.Forecast() == nil):
		return granted, nil
	case err != nil && !errors.As(err, new(*client.RefusalError)):
		return nil, err
	}
	for _, model := range others {
		if instead := c.fallBack(ctx, model); instead != nil {
			if granted != nil {
				granted.settle(settlement{unsent: true})
			}
			return instead, nil
		}
	}
	if granted != nil {
		return granted, nil
	}
	return c.acquire(ctx, wait)
}

// fallBack asks for another model, without a wait. nil: it is not granted, and the call is unchanged.
func (c *call) fallBack(ctx context.Context, model string) *grant {
	path, data, ok := c.renamed(model)
	if !ok {
		return nil
	}
	own, ownTarget, ownDraws, ownAmounts, ownKey, ownPrefix := c.model, c.target, c.draws, c.amounts, c.key, c.prefixOfQuotas
	c.model, c.draws = model, nil
	if c.key == nil {
		c.target = c.aimAt(model)
	} else {
		c.target = c.find(c.prefixOfQuotas, model)
	}
	if c.target.Has() {
		c.estimate()
		if _, refused := c.addDraws(); !refused && len(c.draws) > 0 && c.checkPools() == nil {
			if granted, err := c.acquire(ctx, 0); err == nil {
				c.insteadOf, c.path, c.body = own, path, &body{data: data}
				if !c.injected && c.asksUsage() { // the other model's quotas may need it
					c.injectUsage()
				}
				return granted
			}
		}
	}
	c.model, c.target, c.draws, c.amounts, c.key, c.prefixOfQuotas = own, ownTarget, ownDraws, ownAmounts, ownKey, ownPrefix
	c.ask.Model, c.ungoverned = own, ""
	return nil
}

// renamed returns the call's path and body with another model's name; the rest is unchanged.
func (c *call) renamed(model string) (path string, data []byte, ok bool) {
	if c.op.Model != "" {
		path, ok = renamedPath(c.path, model)
		return path, c.body.data, ok
	}
	data, ok = renamedBody(c.body.data, model)
	return c.path, data, ok
}

// renamedPath replaces the segment, or the part of it, that names a model.
func renamedPath(path, model string) (string, bool) {
	for _, before := range []string{"/models/", "/deployments/", "/model/"} {
		at := strings.Index(path, before)
		if at < 0 {
			continue
		}
		at += len(before)
		ends := "/"
		if before == "/models/" {
			ends = "/:" // the method follows the model
		}
		end := strings.IndexAny(path[at:], ends)
		if end <= 0 {
			return "", false
		}
		return path[:at] + url.PathEscape(model) + path[at+end:], true
	}
	return "", false
}

// renamedBody replaces the values of top-level members named model.
func renamedBody(data []byte, model string) ([]byte, bool) {
	text, err := json.Marshal(model)
	if err != nil {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, false
	}
	var out []byte
	copied, found := 0, false
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, false
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, false
		}
		if key != "model" {
			continue
		}
		end := int(dec.InputOffset())
		out = append(append(out, data[copied:end-len(value)]...), text...)
		copied, found = end, true
	}
	if end, err := dec.Token(); err != nil || end != json.Delim('}') {
		return nil, false
	}
	return append(out, data[copied:]...), found
}
