package client

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/quotad/quotad/client/internal/ahead"
	"github.com/quotad/quotad/client/internal/unpack"
	"github.com/quotad/quotad/client/usage"
	"github.com/quotad/quotad/rpc/signals"
)

// reportEvery is the shortest interval between reports of a quota's ordinary counts.
const reportEvery = time.Second

// peekWithin bounds the wait for the beginning of an error's body.
const peekWithin = 2 * time.Second

// peek returns the beginning of an error's body, decompressed; the caller still reads the whole body as it came. A GraphQL answer
// states a refusal in its body, under status 200.
func peek(response *http.Response, dialect signals.Dialect) []byte {
	if response.Body == nil || response.StatusCode == http.StatusSwitchingProtocols ||
		!dialect.NeedsBody(response.StatusCode, response.Header) {
		return nil
	}
	start, rest, err := ahead.Read(response.Body, signals.MaxBody, peekWithin)
	unread := io.MultiReader(bytes.NewReader(start), rest)
	if err != nil {
		// The caller gets the same error at the same offset.
		unread = io.MultiReader(bytes.NewReader(start), failing{err})
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{unread, rest}
	return unpack.Start(response.Header, start, signals.MaxBody)
}

// failing is a reader that fails.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// signalsFor converts the provider's statements into signals for the cluster. It omits counts of limits that the call does not draw on.
// A refusal always counts: if the provider names no limit of the call, against the call's first item.
func (t *Transport) signalsFor(call Call, said []signals.Signal, limited bool) []Signal {
	var out []Signal
	for _, s := range said {
		if s.Class == signals.NotALimit {
			continue
		}
		cause := causeOf(s)
		quota := call.quota(s.Resource)
		switch {
		case s.Class == signals.OK && s.Resource == "" && quota == "" && len(call.Items) == 1:
			quota = call.Items[0].Quota
		case s.Class != signals.OK && quota == "":
			quota = call.Items[0].Quota
		}
		if quota == "" || (s.Class == signals.OK && !limited && !t.due(quota, s)) {
			continue
		}
		if cause == CausePlan {
			// No quota of the call is paid for.
			for _, item := range call.Items {
				out = append(out, Signal{Quota: item.Quota, Cause: cause})
			}
			continue
		}
		out = append(out, signalOf(quota, cause, s))
	}
	return merged(out)
}

func signalOf(quota string, cause Cause, s signals.Signal) Signal {
	out := Signal{Quota: quota, Cause: cause}
	// The cluster rejects a report with a count above its maximum, and would miss the cooldown in it.
	if s.Limit.Known && s.Limit.N <= maxAmount {
		out.Limit = &s.Limit.N
	}
	if s.Remaining.Known && s.Remaining.N <= maxAmount {
		out.Remaining = &s.Remaining.N
	}
	if s.ResetIn.Known && s.ResetIn.D > 0 {
		out.ResetAfter, out.ResetResolution = &s.ResetIn.D, s.ResetResolution
	}
	if s.RetryAfter.Known {
		out.RetryAfter = &s.RetryAfter.D
	}
	return out
}

// merged keeps one signal per quota: a refusal merges with its counts.
func merged(all []Signal) []Signal {
	var out []Signal
	at := map[string]int{}
	for _, s := range all {
		i, ok := at[s.Quota]
		if !ok {
			at[s.Quota] = len(out)
			out = append(out, s)
			continue
		}
		if s.Cause != CauseOK {
			out[i].Cause, out[i].RetryAfter = s.Cause, s.RetryAfter
		}
	}
	return out
}

// due reports whether ordinary counts of a quota are worth a report now: when nothing is left, or after reportEvery.
func (t *Transport) due(quota string, s signals.Signal) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if last, ok := t.reported[quota]; ok && now.Sub(last) < reportEvery && (!s.Remaining.Known || s.Remaining.N > 0) {
		return false
	}
	t.reported[quota] = now
	return true
}

func causeOf(s signals.Signal) Cause {
	switch s.Class {
	case signals.Throttled:
		if s.Scope == signals.ScopeOrg || s.Scope == signals.ScopeProject {
			return CauseAccount
		}
		return CauseSaturated
	case signals.Exhausted:
		return CauseExhausted
	case signals.Overloaded:
		return CauseOverloaded
	case signals.Billing:
		return CausePlan
	case signals.NotALimit:
		return CauseNotALimit
	case signals.OK:
	}
	return CauseOK
}

// govern ties the end of the call to the end of its body.
func (g *governed) govern(response *http.Response) {
	g.status = response.StatusCode
	if g.status >= http.StatusBadRequest && g.status < http.StatusInternalServerError {
		g.unused = true
	}
	if response.Body == nil || response.Body == http.NoBody {
		used := map[string]int64{}
		if len(g.call.Parts) > 0 {
			g.addStatedUse(usage.Said{}, true, used)
		}
		g.settle(g.items(used))
		// Nobody closes an empty body, so cancel here: the caller's context would keep this one alive.
		g.cancel(nil)
		return
	}
	body := &settlingBody{ReadCloser: response.Body, governed: g}
	if len(g.call.Parts) > 0 {
		body.meter = usage.NewMeter(response.Header)
	}
	for field, quota := range g.call.Usage {
		body.usage = append(body.usage, fieldUsage{fieldScan: scanFor(field), quota: quota})
	}
	if writer, ok := response.Body.(io.Writer); ok {
		// The connection of an upgraded protocol is also written to.
		response.Body = struct {
			*settlingBody
			io.Writer
		}{body, writer}
		return
	}
	response.Body = body
}

// settlingBody passes a body through and settles its call at the end.
type settlingBody struct {
	io.ReadCloser
	governed *governed

	// mu: a body may be closed during a read.
	mu    sync.Mutex
	usage []fieldUsage
	// meter reads the use that a model's answer states; nil: not a model's answer. ended: the call is settled.
	meter *usage.Meter
	ended bool
}

// Read implements io.Reader.
func (b *settlingBody) Read(p []byte) (int, error) {
	b.governed.begin()
	n, err := b.ReadCloser.Read(p)
	b.governed.end()
	b.mu.Lock()
	for i := range b.usage {
		b.usage[i].scan(p[:n])
	}
	b.mu.Unlock()
	if b.meter != nil {
		_, _ = b.meter.Write(p[:n])
	}
	if err != nil {
		b.end(errors.Is(err, io.EOF))
	}
	return n, err
}

// Close implements io.Closer.
func (b *settlingBody) Close() error {
	err := b.ReadCloser.Close()
	b.end(false)
	b.governed.cancel(nil)
	return err
}

// end settles the call by the use that the body stated. whole: the body was read to its end.
func (b *settlingBody) end(whole bool) {
	b.mu.Lock()
	ended := b.ended
	b.ended = true
	b.mu.Unlock()
	if ended {
		return
	}
	used := b.counted(whole)
	if b.meter != nil {
		b.meter.End()
		said := b.meter.Said()
		b.governed.reportCutOff(said)
		// Some clients close a stream once it announced its end.
		b.governed.addStatedUse(said, whole || said.Last, used)
	}
	b.governed.settle(b.governed.items(used))
}

// items returns the used amounts of the call's quotas, as far as they are known.
func (g *governed) items(used map[string]int64) (actual []Item) {
	for _, item := range g.call.Items {
		if n, ok := used[item.Quota]; ok {
			actual = append(actual, Item{Quota: item.Quota, Amount: n})
		}
	}
	return actual
}

// counted returns the use by quota, from the fields of Call.Usage.
func (b *settlingBody) counted(whole bool) map[string]int64 {
	used := map[string]int64{}
	if !whole && b.governed.call.UsageAtEnd {
		return used
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.usage {
		if n, ok := b.usage[i].total(); ok {
			used[b.usage[i].quota] += n
		}
	}
	return used
}
