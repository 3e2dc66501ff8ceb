package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// call is a call with its messages decoded.
type call struct {
	*history.Call
	request, response proto.Message
	// parts are the commands of a Batch, or the call itself.
	parts []part
}

// part is one command and its answer.
type part struct {
	asked string
	id    requestID
	// identified says whether id is set.
	identified bool
	// replied is the answer, "" if there is none; left is its remaining time; meta names its node, term and index.
	replied string
	left    time.Duration
	meta    *quotav1.Meta
	// served bounds the time from the stamp of the entry to the answer.
	served time.Duration
	// reason is that of a command that failed inside a Batch, or of the whole call.
	reason quotav1.Reason
}

// decode decodes a call's messages and splits it into parts.
func decode(line *history.Call) (*call, error) {
	request, response, err := line.Decode()
	if err != nil {
		return nil, err
	}
	c := &call{Call: line, request: request, response: response}
	if batch, ok := request.(*quotav1.BatchRequest); ok {
		c.parts = batchParts(batch, response)
		if line.Error != nil {
			for i := range c.parts {
				c.parts[i].reason = quotav1.Reason(line.Error.Reason)
			}
		}
		return c.timed(), nil
	}
	p := part{asked: apiAsked(request)}
	p.id, p.identified = apiID(request)
	switch {
	case line.Error != nil:
		p.reason = quotav1.Reason(line.Error.Reason)
	default:
		p.replied, p.left, p.meta = apiAnswer(response)
	}
	c.parts = []part{p}
	return c.timed(), nil
}

// timed records the most time that each answer can have taken.
func (c *call) timed() *call {
	for i := range c.parts {
		c.parts[i].served = time.Duration(c.Returned - c.Sent)
	}
	return c
}

// fits says whether an answer's remaining time is that in the log, less the time until the answer was made.
func (p *part) fits(left time.Duration) bool {
	const slack = 50 * time.Millisecond // for clock drift, and for an entry that is stamped when it is proposed
	return p.left <= left && p.left >= left-p.served-p.served/100-slack
}

// batchParts pairs the commands of a Batch with their results.
func batchParts(batch *quotav1.BatchRequest, response proto.Message) []part {
	answer, _ := response.(*quotav1.BatchResponse)
	results := answer.GetResults()
	parts := make([]part, len(batch.Commands))
	for i, command := range batch.Commands {
		asked := inner(command)
		parts[i].asked = apiAsked(asked)
		parts[i].id, parts[i].identified = apiID(asked)
		if i >= len(results) {
			continue
		}
		if failed := results[i].GetError(); failed != nil {
			parts[i].reason = failed.Info.GetReason()
			continue
		}
		parts[i].replied, parts[i].left, _ = apiAnswer(inner(results[i]))
		parts[i].meta = answer.Meta // results have none of their own
	}
	return parts
}

// inner is the message that is set in the oneof of a Batch's command or result.
func inner(message proto.Message) any {
	reflected := message.ProtoReflect()
	field := reflected.WhichOneof(reflected.Descriptor().Oneofs().Get(0))
	if field == nil {
		return nil
	}
	return reflected.Get(field).Message().Interface()
}

// read says whether a call is one that leaves nothing in the log.
func (c *call) read() bool {
	switch c.Procedure {
	case "GetQuota", "ListQuotas", "ListLeases", "CheckFence", "GetWorkflow", "ListTasks":
		return true
	}
	return false
}

// answers compares each client's answers with the log.
func (r *run) answers(rep *replayed) {
	v := r.verdict("answers", "Each answer is the one that the log has for this command, at the term and index that it names.")
	once := r.verdict("once", "A request is carried out once, and all its answers are the same.")
	first := map[replied]string{}
	for _, c := range r.calls {
		if c.read() {
			continue
		}
		for i := range c.parts {
			p := &c.parts[i]
			if p.meta == nil {
				continue
			}
			v.Checked++
			if why := rep.matches(p); why != "" {
				v.violate("%s by %s at %d: %s", c.Procedure, c.Client, c.Sent, why)
			}
			if r.term(p.meta.Index) != p.meta.Term {
				v.violate("%s by %s: the answer comes from term %d, index %d, where the log has term %d",
					c.Procedure, c.Client, p.meta.Term, p.meta.Index, r.term(p.meta.Index))
			}
			r.sameAgain(once, first, c, p)
		}
	}
}

// sameAgain compares the constant parts of two answers to one request.
func (r *run) sameAgain(v *Verdict, first map[replied]string, c *call, p *part) {
	if !p.identified {
		return
	}
	v.Checked++
	essence := lasting(c)
	if essence == "" {
		return
	}
	key := replied{p.id, r.lost(p.meta.Index)}
	if replied, ok := first[key]; ok && replied != essence {
		v.violate("%v of %s got %q, and another time %q", p.id, c.Client, replied, essence)
	}
	first[key] = essence
}

// replied identifies a request within one history: the part that a restore took back is a history of its own, numbered by the restore.
type replied struct {
	id   requestID
	lost int
}

// lasting is the part of an answer that repeats must not change: the lease and the fence. The answer to a waiting Reserve changes once,
// when the wait ends.
func lasting(c *call) string {
	answer, ok := c.response.(*quotav1.ReserveResponse)
	if !ok || answer.GetLease() == nil {
		return ""
	}
	return fmt.Sprintf("lease %d fence %d %s", answer.GetLease().Id, answer.GetLease().Fence, apiGranted(answer.GetLease().Items))
}

// matches looks for the client's command in the log, at the index of its answer and with the same outcome. It returns why there is none.
func (rep *replayed) matches(p *part) string {
	var found []string
	for _, o := range rep.at[p.meta.Index] {
		if !same(p, &o) {
			continue
		}
		replied, left := logAnswer(o.result, o.now)
		if replied == p.replied && p.fits(left) && o.now == nanos(p.meta.ClusterTime) {
			return ""
		}
		found = append(found, fmt.Sprintf("%q, %v left at %d", replied, left, o.now))
	}
	for _, end := range rep.endedAt[p.meta.Index] {
		end.command = rep.asked[end.ticket]
		if end.command == nil || !same(p, &end.occurrence) {
			continue
		}
		replied, left := logAnswer(end.result, end.now)
		if replied == p.replied && p.fits(left) {
			return ""
		}
		found = append(found, fmt.Sprintf("%q, %v left (end of ticket %d)", replied, left, end.ticket))
	}
	return fmt.Sprintf("asked %q, got %q with %v left at index %d, time %d; the log has %v",
		p.asked, p.replied, p.left, p.meta.Index, nanos(p.meta.ClusterTime), found)
}

// same says whether a command of the log is the one that a client sent.
func same(p *part, o *occurrence) bool {
	if id, ok := logID(o.command); ok != p.identified || ok && id != p.id {
		return false
	}
	return logAsked(o.command) == p.asked
}

// term is the term of the log's entry at an index; 0: there is none.
func (r *run) term(index uint64) uint64 {
	low, high := 0, len(r.log)
	for low < high {
		middle := (low + high) / 2
		if r.log[middle].Index < index {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low < len(r.log) && r.log[low].Index == index {
		return r.log[low].Term
	}
	return 0
}

// unanswered judges calls that ended with an error.
func (r *run) unanswered(rep *replayed) {
	v := r.verdict("refusals", "What was answered \"not accepted\" is in no log; an error that names a rule is the result in the log.")
	accepted := map[requestID]int{}
	reasons := map[requestID][]quotav1.Reason{}
	for _, c := range r.calls {
		if c.read() {
			continue
		}
		for i := range c.parts {
			p := &c.parts[i]
			if !p.identified {
				continue
			}
			v.Checked++
			refused := c.Error != nil && c.Error.NotAccepted
			if refused {
				accepted[p.id] += 0
			} else {
				accepted[p.id]++
			}
			if !refused && p.reason != 0 {
				reasons[p.id] = append(reasons[p.id], p.reason)
			}
		}
		if c.Error != nil && c.Error.Reason == int32(quotav1.Reason_REASON_INTERNAL) {
			v.violate("%s by %s ended in a defect of quotad: %s", c.Procedure, c.Client, c.Error.Text)
		}
	}
	for id, times := range accepted {
		if places := rep.numbered[id]; len(places) > times {
			v.violate("%v stands in the log %d times, first at %d, and can have been accepted %d times", id, len(places), places[0].index, times)
		}
	}
	for id, all := range reasons {
		for _, reason := range all {
			if why := rep.failedSo(id, reason); why != "" {
				v.violate("%v was answered %v: %s", id, reason, why)
			}
		}
	}
}

// failedSo says why an error differs from the result in the log. It returns "" if they agree, or if the log cannot tell: the request was
// refused before it was proposed, or its outcome is unknown.
func (rep *replayed) failedSo(id requestID, reason quotav1.Reason) string {
	places := rep.numbered[id]
	if reason >= quotav1.Reason_REASON_NO_LEADER || len(places) == 0 {
		return ""
	}
	var had []quotav1.Reason
	for _, o := range places {
		got := quotav1.Reason(o.result.GetFailure().GetReason())
		if got == reason {
			return ""
		}
		had = append(had, got)
	}
	return fmt.Sprintf("the log has %v", had)
}

// uninvited finds commands of numbered requests in the log that no client sent. It is judged with the answers.
func (r *run) uninvited(rep *replayed) {
	v := r.verdict("invited", "Nothing is in the log that nobody asked for.")
	sent := map[requestID]map[string]bool{}
	for _, c := range r.calls {
		for i := range c.parts {
			p := &c.parts[i]
			if !p.identified {
				continue
			}
			if sent[p.id] == nil {
				sent[p.id] = map[string]bool{}
			}
			sent[p.id][p.asked] = true
		}
	}
	unrecorded := rep.sessionsOf(history.Machine)
	maps.Copy(unrecorded, rep.sessionsOf(history.Unrecorded))
	for id, places := range rep.numbered {
		if strings.HasPrefix(id.key, history.Unrecorded) || unrecorded[id.session] {
			continue
		}
		for _, o := range places {
			v.Checked++
			if asked := logAsked(o.command); !sent[id][asked] {
				v.violate("index %d: %v, %q, was sent by nobody", o.index, id, asked)
			}
		}
	}
	r.uninvitedReserves(rep, v)
}

// uninvitedReserves judges Reserves without an ID, including those whose callers left before the answer: each is in the log at most once
// for each time that it was sent. Nodes propose no Reserve of their own.
func (r *run) uninvitedReserves(rep *replayed, v *Verdict) {
	sent := map[string]int{}
	for _, c := range r.calls {
		for i := range c.parts {
			if !c.parts[i].identified {
				sent[c.parts[i].asked]++
			}
		}
	}
	logged := map[string]int{}
	for _, all := range rep.at {
		for _, o := range all {
			reserve := o.command.GetReserve()
			_, identified := logID(o.command)
			if reserve == nil || identified || unwritten(reserve.Holder) {
				continue
			}
			v.Checked++
			logged[logAsked(o.command)]++
		}
	}
	for _, asked := range slices.Sorted(maps.Keys(logged)) {
		if logged[asked] > sent[asked] {
			v.violate("%q is in the log %d times, and was sent %d times", asked, logged[asked], sent[asked])
		}
	}
}

// unwritten says whether the calls of a holder are not recorded.
func unwritten(holder string) bool {
	return strings.HasPrefix(holder, history.Unrecorded) || strings.HasPrefix(holder, history.Machine)
}

// sessionsOf are the sessions of holders whose names begin with a word.
func (rep *replayed) sessionsOf(word string) map[uint64]bool {
	sessions := map[uint64]bool{}
	for _, all := range rep.at {
		for _, o := range all {
			if opened := o.result.GetSessionOpened(); opened != nil && strings.HasPrefix(o.command.GetOpenSession().GetHolder(), word) {
				sessions[opened.Session] = true
			}
		}
	}
	return sessions
}
