package rpc

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/signals"
)

// maxAnswerHeaders bounds the headers of a provider's answer, maxAnswerRead the bytes of its body that are read.
const (
	maxAnswerHeaders = 128
	maxAnswerRead    = 32 << 10
)

// readReport returns a report's command and the signals read from its answer, if it has one. It runs on the leader, which knows all
// leases.
func (s *Server) readReport(ctx context.Context, r *quotav1.ReportRequest, who *caller) (*logpb.Command, []*quotav1.Signal, error) {
	if r.GetAnswer() == nil {
		return reportCommand(r, r.Signals, 0, who), nil, nil
	}
	var items []string
	err := s.node.Read(ctx, raftnode.Stale, func(state *fsm.State, _ fsm.Clock, _ raftnode.Position) { items = state.ItemsOf(r.Lease) })
	if err != nil {
		return nil, nil, err
	}
	digest := uint64(0)
	if s.node.EntryVersion() >= fsm.AnswerDigestVersion {
		digest = answerDigest(r.Answer)
	}
	read := signalsIn(r.Answer, items, time.Now())
	return reportCommand(r, read, digest, who), read, nil
}

// answerDigest returns a digest of a provider's answer, never 0. The state machine recognizes a repeated report by it: the signals depend
// on the lease, so a repeat may yield others.
func answerDigest(a *quotav1.Answer) uint64 {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(a)
	if err != nil {
		panic("rpc: cannot encode a decoded answer: " + err.Error())
	}
	digest := sha256.Sum256(encoded)
	return max(binary.BigEndian.Uint64(digest[:]), 1)
}

// signalsIn reads a validated answer to a call that draws on these quotas. It always returns a signal for the first one. A lease that has
// ended has no quotas: the state machine refuses that report.
func signalsIn(a *quotav1.Answer, quotas []string, now time.Time) []*quotav1.Signal {
	if len(quotas) == 0 {
		quotas = []string{""}
	}
	dialect := signals.Auto
	if named, err := signals.DialectNamed(a.Dialect); err == nil {
		dialect = named
	}
	header := make(http.Header, len(a.Headers))
	for name, value := range a.Headers {
		for line := range strings.SplitSeq(value, "\n") {
			header.Add(name, strings.TrimSpace(line))
		}
	}
	body := a.Body[:min(len(a.Body), maxAnswerRead)]
	said := dialect.ObserveAnswer(now, int(a.Status), header, []byte(body))
	var out []*quotav1.Signal
	for _, of := range signals.Attribute(said, quotas) {
		out = append(out, apiSignal(of))
	}
	if out != nil {
		return out
	}
	cause := quotav1.Cause_CAUSE_OK
	if a.Status >= http.StatusBadRequest {
		cause = quotav1.Cause_CAUSE_NOT_A_LIMIT
	}
	return []*quotav1.Signal{{Quota: quotas[0], Cause: cause}}
}

// apiSignal converts a signal to the API's form. It omits counts above the cluster's largest amount.
func apiSignal(of signals.Of) *quotav1.Signal {
	out := &quotav1.Signal{Quota: of.Quota, Cause: causeOf(of.Signal)}
	if of.Limit.Known && of.Limit.N <= maxAmount {
		out.Limit = new(of.Limit.N)
	}
	if of.Remaining.Known && of.Remaining.N <= maxAmount {
		out.Remaining = new(of.Remaining.N)
	}
	if of.ResetIn.Known && of.ResetIn.D > 0 {
		out.ResetAfter, out.ResetResolution = durationpb.New(of.ResetIn.D), durationpb.New(of.ResetResolution)
	}
	if of.RetryAfter.Known {
		out.RetryAfter = durationpb.New(of.RetryAfter.D)
	}
	return out
}

func causeOf(s signals.Signal) quotav1.Cause {
	switch s.Class {
	case signals.Throttled:
		if s.Scope == signals.ScopeOrg || s.Scope == signals.ScopeProject {
			return quotav1.Cause_CAUSE_ACCOUNT
		}
		return quotav1.Cause_CAUSE_SATURATED
	case signals.Exhausted:
		return quotav1.Cause_CAUSE_EXHAUSTED
	case signals.Overloaded:
		return quotav1.Cause_CAUSE_OVERLOADED
	case signals.Billing:
		return quotav1.Cause_CAUSE_PLAN
	case signals.NotALimit:
		return quotav1.Cause_CAUSE_NOT_A_LIMIT
	case signals.OK:
	}
	return quotav1.Cause_CAUSE_OK
}
