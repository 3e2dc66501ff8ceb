package gateway

import (
	"cmp"
	"context"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/genai"
	"github.com/quotad/quotad/client/tracing"
)

// traced returns a request in the trace that its headers name, for spans of this gateway. The headers themselves go to the provider as they
// came.
func (g *Gateway) traced(r *http.Request) *http.Request {
	if g.options.Recorder == nil {
		return r
	}
	return r.WithContext(g.options.Recorder.Continue(r.Context(), r.Header))
}

// traced begins the span of a call of a model, and returns its request in the span's context, so that its waits are children of it.
func (c *call) traced(r *http.Request) *http.Request {
	if c.gateway.options.Recorder == nil || !c.op.Generates() {
		return r
	}
	label := ""
	if c.model != "" {
		label = c.modelLabel() // callers could make any number of others
	}
	ctx, span := c.gateway.options.Recorder.Begin(r.Context(), genai.Request{
		Operation: operationName(c.op, c.path), Provider: genai.ProviderOf(c.upstream.dialect), Model: c.model, Label: label,
		Server: c.url(c.path, ""), Arrived: c.began,
	})
	c.span = span
	return r.WithContext(ctx)
}

// operationName returns the name of an operation in OpenTelemetry's conventions.
func operationName(op dialect.Operation, escaped string) string {
	folded := strings.ToLower(escaped)
	switch {
	case op.Operation == estimate.Embed:
		return genai.OperationEmbeddings
	case op.Dialect == dialect.Gemini, strings.Contains(folded, "/images/"), strings.Contains(folded, "/audio/"),
		strings.Contains(folded, "/videos"):
		return genai.OperationContent
	case path.Base(folded) == "completions" && !strings.HasSuffix(folded, "/chat/completions"), path.Base(folded) == "complete":
		return genai.OperationCompletion
	}
	return genai.OperationChat
}

// tracedWait begins the span of a wait for quota, and returns the function that ends it.
func (c *call) tracedWait(ctx context.Context) func(*grant, error) {
	tracer := c.gateway.options.Recorder.Tracer()
	if tracer == nil {
		return func(*grant, error) {}
	}
	end := tracing.Wait(ctx, tracer, client.ReserveRequest{Items: c.items(), Class: classOf(c.caller.Class), Holder: c.caller.Holder})
	return func(granted *grant, err error) {
		var lease *client.Lease
		if granted != nil {
			lease = granted.lease
		}
		end(lease, err)
	}
}

// recorded returns what the call's span says of its end.
func (o outcome) recorded() genai.Outcome {
	out := genai.Outcome{Code: o.code, Error: o.failure(), First: o.chunk, Said: o.said}
	if o.code == statusGone {
		out.Code = 0 // nobody received it
	}
	return out
}

// failure names what went wrong with a call; empty: nothing did.
func (o outcome) failure() string {
	switch {
	case o.refusal != "":
		return o.refusal
	case o.code == statusGone:
		return endGone
	case o.code >= http.StatusBadRequest:
		return strconv.Itoa(o.code)
	case o.said.Failure != nil:
		return cmp.Or(o.said.Failure.Type, o.said.Failure.Code, endBroken)
	case o.end == endComplete:
		return ""
	}
	return o.end
}
