package rpc

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/signals"
)

// Bounds of requests.
const (
	maxAmount    = 1<<53 - 1
	maxHolder    = 128
	maxQuotaName = 200
	maxItems     = 64
	maxSignals   = 64
	maxKey       = 128
	maxBatch     = 4096
	maxApplied   = 4096
	maxNote      = 500
	maxPage      = 1000
	maxTaskNames = 16
	maxDetail    = 300
	maxTaskWait  = 31 * 24 * time.Hour
	maxWorkflows = 1000
	maxSteps     = 64
	maxMembers   = 32
	maxMember    = 64
	minTTL       = time.Second
	maxTTL       = 24 * time.Hour
	maxWait      = 10 * time.Minute
	maxDuration  = 10 * 365 * 24 * time.Hour
)

// rules is the one table of valid requests: by request type, the checks in their order.
var rules = tableOf(
	rule(func(c *checker, r *quotav1.OpenSessionRequest) { c.holder("holder", r.Holder, true) }),
	rule(func(c *checker, r *quotav1.CloseSessionRequest) { c.positive("session", r.Session) }),
	rule((*checker).reserve),
	rule(func(c *checker, r *quotav1.ConsumeRequest) {
		c.request(r.RequestId)
		c.lease(r.Lease, r.Fence)
		c.positive("op", r.Op)
		c.bounded("op", r.Op)
		c.bounded("done_below", r.DoneBelow)
		c.items("items", r.Items, 0, 1)
	}),
	rule((*checker).settle),
	rule(func(c *checker, r *quotav1.ReleaseRequest) {
		c.request(r.RequestId)
		c.lease(r.Lease, r.Fence)
		c.items("items", r.Items, 0, 1)
	}),
	rule(func(c *checker, r *quotav1.RenewRequest) {
		c.request(r.RequestId)
		c.lease(r.Lease, r.Fence)
		c.length("ttl", r.Ttl, minTTL, maxTTL)
	}),
	rule(func(c *checker, r *quotav1.WithdrawRequest) {
		c.request(r.RequestId)
		c.positive("ticket", r.Ticket)
	}),
	rule((*checker).report),
	rule(func(c *checker, r *quotav1.BatchRequest) {
		c.count("commands", len(r.Commands), 1, maxBatch)
	}),
	rule(func(c *checker, r *quotav1.WatchRequest) {
		c.text("quota_prefix", r.QuotaPrefix, maxQuotaName)
		c.text("holder", r.Holder, maxHolder)
	}),
	rule(func(c *checker, r *quotav1.GetQuotaRequest) {
		c.quotaName("name", r.Name)
		c.enum("read", int32(r.Read), quotav1.ReadMode_name)
	}),
	rule(func(c *checker, r *quotav1.ListQuotasRequest) {
		c.text("prefix", r.Prefix, maxQuotaName)
		c.text("page_token", r.PageToken, maxQuotaName)
		c.page(r.PageSize)
		c.enum("read", int32(r.Read), quotav1.ReadMode_name)
	}),
	rule(func(c *checker, r *quotav1.ListLeasesRequest) {
		c.text("holder", r.Holder, maxHolder)
		c.text("quota", r.Quota, maxQuotaName)
		c.pageNumber(r.PageToken)
		c.page(r.PageSize)
		c.enum("read", int32(r.Read), quotav1.ReadMode_name)
	}),
	rule(func(c *checker, r *quotav1.ListUsageRequest) {
		c.text("holder", r.Holder, maxHolder)
		c.text("quota", r.Quota, maxQuotaName)
		c.text("page_token", r.PageToken, maxHolder+12)
		c.page(r.PageSize)
		c.enum("read", int32(r.Read), quotav1.ReadMode_name)
	}),
	rule(func(c *checker, r *quotav1.GetWorkflowRequest) {
		c.quotaName("name", r.Name)
		c.enum("read", int32(r.Read), quotav1.ReadMode_name)
	}),
	rule(func(c *checker, r *quotav1.ListWorkflowsRequest) {
		c.text("holder", r.Holder, maxHolder)
		c.text("page_token", r.PageToken, maxQuotaName)
		c.page(r.PageSize)
		c.enum("read", int32(r.Read), quotav1.ReadMode_name)
	}),
	rule(func(c *checker, r *quotav1.CheckFenceRequest) { c.lease(r.Lease, r.Fence) }),
	rule((*checker).applyQuotas),
	rule((*checker).beginTask),
	rule((*checker).endTask),
	rule(func(c *checker, r *quotav1.RenewTaskRequest) {
		c.request(r.RequestId)
		c.holder("task", r.Task, false)
		c.positive("fence", r.Fence)
		c.length("ttl", r.Ttl, minTTL, maxTTL)
	}),
	rule(func(c *checker, r *quotav1.ListTasksRequest) {
		c.text("prefix", r.Prefix, maxHolder)
		c.text("holder", r.Holder, maxHolder)
		c.enum("phase", int32(r.Phase), quotav1.TaskPhase_name)
		c.text("page_token", r.PageToken, maxHolder)
		c.page(r.PageSize)
		c.enum("read", int32(r.Read), quotav1.ReadMode_name)
	}),
	rule(func(c *checker, r *quotav1.RetryTaskRequest) {
		c.request(r.RequestId)
		c.holder("task", r.Task, false)
	}),
	rule(func(c *checker, r *quotav1.ForgetTaskRequest) {
		c.request(r.RequestId)
		c.holder("task", r.Task, false)
	}),
	rule(func(c *checker, r *quotav1.DeleteQuotaRequest) {
		c.request(r.RequestId)
		c.quotaName("name", r.Name)
	}),
	rule(func(c *checker, r *quotav1.ResetClockRequest) { c.request(r.RequestId) }),
	rule(func(c *checker, r *quotav1.ReopenQuotaRequest) {
		c.request(r.RequestId)
		c.quotaName("name", r.Name)
	}),
	rule(func(c *checker, r *quotav1.OverrideQuotaRequest) {
		c.request(r.RequestId)
		c.quotaName("name", r.Name)
		c.check(r.Limit == nil || *r.Limit >= 0 && *r.Limit <= maxAmount, "limit", "must be 0 to 2^53-1", "0 suspends the quota")
		c.check(r.Limit == nil || r.Duration != nil, "duration", "is missing", "set how long the override lasts")
		c.length("duration", r.Duration, 0, maxDuration)
		c.text("note", r.Note, maxNote)
	}),
	rule(func(c *checker, r *quotav1.ListHolderRulesRequest) {
		c.enum("read", int32(r.Read), quotav1.ReadMode_name)
	}),
	rule(func(c *checker, r *quotav1.DeleteWorkflowRequest) {
		c.request(r.RequestId)
		c.quotaName("name", r.Name)
	}),
	rule(func(c *checker, r *quotav1.RevokeLeaseRequest) {
		c.request(r.RequestId)
		c.positive("lease", r.Lease)
	}),
	rule(func(c *checker, r *quotav1.SetLimitsRequest) {
		c.request(r.RequestId)
		l := r.GetLimits()
		c.check(l != nil, "limits", "is missing", "set at least one limit")
		if l == nil {
			return
		}
		for name, limit := range map[string]*int64{
			"limits.max_sessions": l.MaxSessions, "limits.max_result_bytes": l.MaxResultBytes, "limits.max_waiters": l.MaxWaiters,
			"limits.max_tasks": l.MaxTasks,
			"limits.max_keys":  l.MaxKeys, "limits.max_leases": l.MaxLeases, "limits.max_reports": l.MaxReports,
			"limits.max_holder_bytes": l.MaxHolderBytes, "limits.max_operation_bytes": l.MaxOperationBytes,
		} { // any first error will do
			c.check(limit == nil || *limit > 0 && *limit <= maxAmount, name, "must be 1 to 2^53-1", "")
		}
		c.check(l.GetOperatorsPart() >= 0 && l.GetOperatorsPart() <= 0.5, "limits.operators_part", "must be 0 to 0.5", "0.0625 is a sixteenth")
		c.check(l.GetCallerMin() >= 0 && l.GetCallerMin() <= 0.1, "limits.caller_min", "must be 0 to 0.1", "0.001 is a thousandth")
		c.ofEachNode(l)
		c.length("limits.session_idle", l.GetSessionIdle(), time.Second, 30*24*time.Hour)
		c.length("limits.key_life", l.GetKeyLife(), time.Second, 30*24*time.Hour)
		c.length("limits.task_life", l.GetTaskLife(), time.Second, 30*24*time.Hour)
	}),
	rule(func(c *checker, r *quotav1.AddMemberRequest) {
		c.holder("id", r.Id, false)
		c.address("raft_address", r.RaftAddress)
		c.address("api_address", r.ApiAddress)
	}),
	rule(func(c *checker, r *quotav1.PromoteMemberRequest) { c.holder("id", r.Id, false) }),
	rule(func(c *checker, r *quotav1.RemoveMemberRequest) { c.holder("id", r.Id, false) }),
	rule(func(c *checker, r *quotav1.TransferLeadershipRequest) { c.holder("id", r.Id, true) }),
	rule(func(c *checker, r *quotav1.SetFaultRequest) {
		c.check(r.ClockRatePpm == nil || *r.ClockRatePpm > 0 && *r.ClockRatePpm <= 100_000_000, "clock_rate_ppm",
			"must be 1 to 100,000,000", "1,000,000 is the true rate")
		c.length("wall_offset", r.WallOffset, -maxDuration, maxDuration)
	}),
	rule(func(*checker, *quotav1.GetStatusRequest) {}),
	rule(func(*checker, *quotav1.BackupRequest) {}),
	rule(func(*checker, *quotav1.GetStateHashRequest) {}),
	rule(func(*checker, *quotav1.DumpLogRequest) {}),
)

// validate checks a request against the table. It returns the first error, nil if there is none.
func validate(request proto.Message) *connect.Error { return (&checker{}).all(request) }

// validateCommand checks a command of a Batch. The names of fields begin with its position.
func validateCommand(position int, request proto.Message) *connect.Error {
	return (&checker{inBatch: true, position: position}).all(request)
}

// commandPath names a command of a Batch.
func commandPath(position int) string { return fmt.Sprintf("commands[%d]", position) }

// checker records the first error. Thousands of commands a second are valid, so it formats nothing before an error.
type checker struct {
	// inBatch says that it checks the command at position of a Batch.
	inBatch  bool
	position int
	err      *connect.Error
}

func (c *checker) all(request proto.Message) *connect.Error {
	check, known := rules[request.ProtoReflect().Descriptor().Name()]
	if !known {
		return newError("no validation rule for this request", &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_INTERNAL})
	}
	check(c, request)
	if c.err == nil {
		return nil
	}
	return c.err
}

func (c *checker) check(ok bool, field, message, hint string) {
	if !ok {
		c.fail(field, message, hint)
	}
}

func (c *checker) fail(field, message, hint string) {
	if c.err != nil {
		return
	}
	if c.inBatch {
		field = commandPath(c.position) + "." + field
	}
	c.err = invalid(field, message, hint)
}

func (c *checker) positive(field string, number uint64) {
	c.check(number > 0, field, "is missing", "use a number of 1 or more")
}

// bounded checks a number that the caller counts up: no count from 1 ever reaches its largest value.
func (c *checker) bounded(field string, number uint64) {
	c.check(number <= maxAmount, field, "must not be above 2^53-1", "count from 1")
}

func (c *checker) count(field string, n, least, most int) {
	if n < least || n > most {
		c.fail(field, fmt.Sprintf("has %d entries; allowed are %d to %d", n, least, most), "split it into several requests")
	}
}

func (c *checker) text(field, value string, most int) {
	c.check(utf8.ValidString(value), field, "is not UTF-8", "")
	if len(value) > most {
		c.fail(field, fmt.Sprintf("has %d bytes; the maximum is %d", len(value), most), "")
	}
}

// holder checks a name of a holder or node.
func (c *checker) holder(field, name string, optional bool) {
	if name == "" {
		c.check(optional, field, "is missing", "use a stable name such as ralph@node-7")
		return
	}
	c.text(field, name, maxHolder)
	c.check(!strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == '*' }),
		field, "must not have blanks, control characters or *", "use a name such as ralph@node-7")
}

func (c *checker) quotaName(field, name string) {
	c.check(name != "", field, "is missing", "use a name such as github/core")
	c.text(field, name, maxQuotaName)
}

func (c *checker) address(field, address string) {
	c.text(field, address, 300)
	i := strings.LastIndexByte(address, ':')
	c.check(i > 0 && i < len(address)-1, field, "must be host:port", "")
}

func (c *checker) lease(lease, fence uint64) {
	c.positive("lease", lease)
	c.positive("fence", fence)
}

func (c *checker) page(size int32) {
	if size < 0 || size > maxPage {
		c.fail("page_size", fmt.Sprintf("must be 0 to %d", maxPage), "0 means 100")
	}
}

func (c *checker) pageNumber(token string) {
	_, err := parsePage(token)
	c.check(err == nil, "page_token", "is unknown", "copy it from the last answer, or begin without one")
}

// length checks an optional duration.
func (c *checker) length(field string, d *durationpb.Duration, least, most time.Duration) {
	if d == nil {
		return
	}
	c.check(d.CheckValid() == nil, field, "is not a duration", "use a duration such as 30s")
	if c.err == nil && (d.Seconds >= int64(math.MaxInt64/time.Second) || d.AsDuration() < least || d.AsDuration() > most) {
		c.fail(field, fmt.Sprintf("must be %v to %v", least, most), "use a duration such as 30s")
	}
}

// enum checks that a value of an enumeration is one of its names.
func (c *checker) enum(field string, value int32, names map[int32]string) {
	if _, known := names[value]; !known {
		c.fail(field, fmt.Sprintf("unknown value %d", value), "use one of the names in the schema")
	}
}

// items checks items; least is the smallest amount.
func (c *checker) items(field string, items []*quotav1.Item, fewest int, least int64) {
	c.count(field, len(items), fewest, maxItems)
	for i, item := range items {
		if c.err != nil {
			return
		}
		if part, message, hint := wrongItem(item, items[:min(i, maxItems)], least); message != "" {
			c.fail(fmt.Sprintf("%s[%d]%s", field, i, part), message, hint)
		}
	}
}

// wrongItem returns the invalid part of an item, and why; an empty message if it is valid.
func wrongItem(item *quotav1.Item, before []*quotav1.Item, least int64) (part, message, hint string) {
	name := item.GetQuota()
	switch {
	case item == nil:
		return "", "is missing", ""
	case name == "":
		return ".quota", "is missing", "use a name such as github/core"
	case !utf8.ValidString(name):
		return ".quota", "is not UTF-8", ""
	case len(name) > maxQuotaName:
		return ".quota", fmt.Sprintf("has %d bytes; the maximum is %d", len(name), maxQuotaName), ""
	case item.GetAmount() > maxAmount || item.Amount != nil && item.GetAmount() < least:
		return ".amount", fmt.Sprintf("must be %d to 2^53-1", least), ""
	case slices.ContainsFunc(before, func(other *quotav1.Item) bool { return other.Quota == name }):
		return ".quota", "is named twice", "add the amounts up"
	}
	return "", "", ""
}

func (c *checker) request(id *quotav1.RequestId) {
	if id == nil {
		return
	}
	c.check(id.Session == 0 || id.Seq > 0, "request_id.seq", "is missing", "requests of a session are numbered from 1")
	c.check(id.Session != 0 || id.Seq == 0 && id.AckedBelow == 0, "request_id.session", "is missing", "open a session first")
	c.check(id.Session == 0 || id.IdempotencyKey == "", "request_id.idempotency_key", "must be empty with a session",
		"use either a session or an idempotency key")
	c.bounded("request_id.seq", id.Seq)
	c.check(id.AckedBelow <= id.Seq, "request_id.acked_below", "must not be above seq", "a request cannot acknowledge itself")
	c.text("request_id.idempotency_key", id.IdempotencyKey, maxKey)
}

func (c *checker) reserve(r *quotav1.ReserveRequest) {
	c.request(r.RequestId)
	c.holder("holder", r.Holder, false)
	c.items("items", r.Items, 1, 1)
	c.text("member", r.Member, maxMember)
	c.length("ttl", r.Ttl, minTTL, maxTTL)
	c.length("wait", r.Wait, 0, maxWait)
	c.enum("class", int32(r.Class), quotav1.Class_name)
	c.check(!r.NoBlock || r.RequestId.GetSession() != 0 || r.RequestId.GetIdempotencyKey() != "", "no_block",
		"needs a request_id", "set request_id, and ask for the outcome with the same one")
}

func (c *checker) settle(r *quotav1.SettleRequest) {
	c.request(r.RequestId)
	c.lease(r.Lease, r.Fence)
	c.positive("op", r.Op)
	c.bounded("op", r.Op)
	c.bounded("done_below", r.DoneBelow)
	c.items("unspent", r.Unspent, 0, 1)
	c.items("actual", r.Actual, 0, 0)
	for i, item := range r.Actual {
		c.check(item.Amount != nil, fmt.Sprintf("actual[%d].amount", i), "is missing", "set it, also if it is 0")
	}
	c.check(len(r.Unspent) > 0 || len(r.Actual) > 0 || r.Final || r.Release, "request", "settles nothing",
		"name unspent or actual, or set final or release")
}

func (c *checker) report(r *quotav1.ReportRequest) {
	c.request(r.RequestId)
	c.lease(r.Lease, r.Fence)
	c.bounded("op", r.Op)
	if r.Answer != nil {
		c.check(len(r.Signals) == 0, "signals", "must be empty with an answer", "use either signals or answer")
		c.answer(r.Answer)
		return
	}
	c.count("signals", len(r.Signals), 1, maxSignals)
	for i, s := range r.Signals {
		path := fmt.Sprintf("signals[%d]", i)
		c.check(s != nil, path, "is missing", "")
		if c.err != nil {
			return
		}
		c.quotaName(path+".quota", s.Quota)
		_, known := quotav1.Cause_name[int32(s.Cause)]
		c.check(known && s.Cause != 0, path+".cause", "is missing or unknown", "use CAUSE_OK, CAUSE_SATURATED, ...")
		c.check(s.GetLimit() >= 0 && s.GetLimit() <= maxAmount, path+".limit", "must be 0 to 2^53-1", "leave it out if it is unknown")
		c.check(s.GetRemaining() >= 0 && s.GetRemaining() <= maxAmount, path+".remaining", "must be 0 to 2^53-1", "leave it out if it is unknown")
		c.length(path+".reset_after", s.ResetAfter, 0, maxDuration)
		c.length(path+".reset_resolution", s.ResetResolution, 0, time.Hour)
		c.length(path+".retry_after", s.RetryAfter, 0, maxDuration)
	}
}

// answer checks the form of a provider's answer; the caller is not responsible for its content.
func (c *checker) answer(a *quotav1.Answer) {
	c.check(a.Status >= 100 && a.Status <= 599, "answer.status", "must be 100 to 599", "use the HTTP status of the provider's answer")
	c.check(len(a.Headers) <= maxAnswerHeaders, "answer.headers", fmt.Sprintf("has more than %d entries", maxAnswerHeaders),
		"Date, Retry-After and headers with ratelimit in their names are enough")
	if _, err := signals.DialectNamed(a.Dialect); a.Dialect != "" && err != nil {
		c.fail("answer.dialect", "is unknown", strings.TrimPrefix(err.Error(), "signals: "))
	}
}

func (c *checker) beginTask(r *quotav1.BeginTaskRequest) {
	c.request(r.RequestId)
	c.holder("task", r.Task, false)
	c.holder("holder", r.Holder, false)
	c.count("quotas", len(r.Quotas), 0, maxTaskNames)
	for i, name := range r.Quotas {
		path := fmt.Sprintf("quotas[%d]", i)
		c.quotaName(path, name)
		c.check(!slices.Contains(r.Quotas[:i], name), path, "is named twice", "")
	}
	c.check(r.MaxFailures >= 0 && r.MaxFailures <= 100, "max_failures", "must be 1 to 100", "leave it out for the default of 3")
	c.length("ttl", r.Ttl, minTTL, maxTTL)
	c.check(r.Attempt >= 0 && r.Attempt <= maxAmount, "attempt", "must be 1 to 2^53-1",
		"attempts are numbered from 1; leave it out for the next")
}

func (c *checker) endTask(r *quotav1.EndTaskRequest) {
	c.request(r.RequestId)
	c.holder("task", r.Task, false)
	c.positive("fence", r.Fence)
	_, known := quotav1.TaskOutcome_name[int32(r.Outcome)]
	c.check(known && r.Outcome != 0, "outcome", "is missing or unknown", "use TASK_OUTCOME_DONE, TASK_OUTCOME_FAILED, ...")
	c.check(r.Outcome != quotav1.TaskOutcome_TASK_OUTCOME_LOST, "outcome", "must not be TASK_OUTCOME_LOST, which only the cluster sets",
		"use TASK_OUTCOME_FAILED")
	c.length("wait", r.Wait, 0, maxTaskWait)
	c.text("detail", r.Detail, maxDetail)
	c.enum("report", int32(r.Report), quotav1.Cause_name)
}

func (c *checker) applyQuotas(r *quotav1.ApplyQuotasRequest) {
	c.request(r.RequestId)
	c.count("quotas", len(r.Quotas), 0, maxApplied)
	c.count("holders", len(r.Holders), 0, 10_000)
	c.count("workflows", len(r.Workflows), 0, maxWorkflows)
	c.check(len(r.Quotas) > 0 || r.ReplaceHolders || r.ReplaceWorkflows, "quotas", "is empty",
		"name at least one quota, or set replace_holders or replace_workflows")
	c.check(len(r.Holders) == 0 || r.ReplaceHolders, "replace_holders", "is not set, so the holders would be ignored",
		"set it: the given rules replace all rules")
	c.check(len(r.Workflows) == 0 || r.ReplaceWorkflows, "replace_workflows", "is not set, so the workflows would be ignored",
		"set it: the given workflows replace all workflows")
	for i, q := range r.Quotas {
		path := fmt.Sprintf("quotas[%d]", i)
		c.check(q != nil, path, "is missing", "")
		if c.err != nil {
			return
		}
		c.definition(path, q)
	}
	for i, h := range r.Holders {
		path := fmt.Sprintf("holders[%d]", i)
		c.check(h.GetPattern() != "", path+".pattern", "is missing", "use a name, with * for any characters")
		c.text(path+".pattern", h.GetPattern(), maxHolder)
		c.check(h.GetWeight() >= 0 && h.GetWeight() <= 1000, path+".weight", "must be 1 to 1000", "")
		_, known := quotav1.Class_name[int32(h.GetClass())]
		c.check(known && h.GetClass() != 0, path+".class", "is missing or unknown", "use CLASS_CRITICAL, CLASS_STANDARD or CLASS_BACKGROUND")
	}
	for i, w := range r.Workflows {
		c.workflow(fmt.Sprintf("workflows[%d]", i), w)
	}
}

// workflow checks the form of a workflow; the state machine decides whether it can work.
func (c *checker) workflow(path string, w *quotav1.Workflow) {
	c.check(w != nil, path, "is missing", "")
	if c.err != nil {
		return
	}
	c.quotaName(path+".name", w.Name)
	c.count(path+".steps", len(w.Steps), 0, maxSteps)
	c.check(w.Threshold >= 0, path+".threshold", "must not be below 0", "leave it out for the default of 3")
	c.length(path+".within", w.Within, 0, maxDuration)
	c.length(path+".calm", w.Calm, 0, maxDuration)
	c.length(path+".baton_time", w.BatonTime, 0, maxDuration)
	c.length(path+".pause", w.Pause, 0, maxDuration)
	for i, step := range w.Steps {
		path := fmt.Sprintf("%s.steps[%d]", path, i)
		c.holder(path+".holder", step.GetHolder(), false)
		c.count(path+".after", len(step.GetAfter()), 0, maxSteps)
		for j, before := range step.GetAfter() {
			c.holder(fmt.Sprintf("%s.after[%d]", path, j), before, false)
		}
	}
}

// shares checks the form of a quota's shares.
func (c *checker) shares(path string, s *quotav1.Shares) {
	for name, part := range map[string]float64{
		"critical": s.GetCritical(), "standard": s.GetStandard(), "background": s.GetBackground(), "cap": s.GetCap(), "floor": s.GetFloor(),
	} { // any first error will do
		c.check(part >= 0 && part <= 1, path+"."+name, "must be 0 to 1", "0.4 is 40 %")
	}
	c.length(path+".quiet", s.GetQuiet(), 0, maxDuration)
	c.count(path+".holders", len(s.GetHolders()), 0, 64)
	for name, part := range s.GetHolders() { // any first error will do
		c.holder(path+".holders", name, false)
		c.check(part > 0 && part <= 1, path+".holders", "must have shares above 0 and at most 1", "0.1 is 10 %")
	}
}

// definition checks the form of a definition; the state machine decides whether it can work.
func (c *checker) definition(path string, q *quotav1.Quota) {
	c.quotaName(path+".name", q.Name)
	c.text(path+".parent", q.Parent, maxQuotaName)
	c.text(path+".fallback", q.Fallback, maxQuotaName)
	c.text(path+".note", q.Note, maxNote)
	c.check(q.Rule != nil, path, "has no rule", "set one of window, rate, slots and pool")
	c.enum(path+".charged", int32(q.Charged), quotav1.Charged_name)
	c.enum(path+".settle", int32(q.Settle), quotav1.SettleMode_name)
	c.enum(path+".window.anchor", int32(q.GetWindow().GetAnchor()), quotav1.Anchor_name)
	for _, limit := range []int64{q.GetWindow().GetLimit(), q.GetRate().GetLimit(), q.GetSlots().GetLimit()} {
		c.check(limit >= 0 && limit <= maxAmount, path+".limit", "must be 0 to 2^53-1", "0 suspends the quota")
	}
	c.check(q.MaxHold == nil || *q.MaxHold >= 0 && *q.MaxHold <= maxAmount, path+".max_hold", "must be 1 to 2^53-1",
		"leave it out for no bound")
	c.check(q.GetRate().GetBurst() >= 0 && q.GetRate().GetBurst() <= maxAmount, path+".rate.burst", "must be 1 to 2^53-1",
		"leave it out for no bound")
	c.check(q.DefaultEstimate >= 0 && q.DefaultEstimate <= maxAmount, path+".default_estimate", "must be 1 to 2^53-1", "")
	c.check(q.Headroom >= 0 && q.Headroom < 0.999_999_5, path+".headroom", "must be at least 0 and below 1",
		"0.2 keeps a fifth of the limit free")
	c.length(path+".spend_by", q.SpendBy, 0, maxDuration)
	c.length(path+".transit", q.Transit, 0, maxDuration)
	c.length(path+".max_call", q.MaxCall, 0, maxDuration)
	c.length(path+".rate.per", q.GetRate().GetPer(), 0, maxDuration)
	c.length(path+".window.skew", q.GetWindow().GetSkew(), 0, maxDuration)
	c.length(path+".slots.grace", q.GetSlots().GetGrace(), 0, maxDuration)
	if pool := q.GetPool(); pool != nil {
		c.check(len(pool.Members) > 0 && len(pool.Members) <= maxMembers, path+".pool.members", fmt.Sprintf("must have 1 to %d entries",
			maxMembers), "")
		for i, member := range pool.Members {
			c.text(fmt.Sprintf("%s.pool.members[%d].name", path, i), member.GetName(), maxMember)
			c.quotaName(fmt.Sprintf("%s.pool.members[%d].quota", path, i), member.GetQuota())
		}
	}
	if w := q.GetWindow(); w != nil {
		_, _, err := parseEvery(w.Every)
		c.check(err == nil, path+".window.every", "must be hour, day, month or a duration", "use a duration such as 15m")
	}
	if p := q.Policy; p != nil {
		c.enum(path+".policy.zones", int32(p.Zones), quotav1.Zones_name)
		c.length(path+".policy.ramp", p.Ramp, 0, maxDuration)
		c.shares(path+".policy.shares", p.Shares)
		c.length(path+".policy.ageing", p.Ageing, 0, maxDuration)
		c.length(path+".policy.breaker.closed", p.GetBreaker().GetClosed(), 0, maxDuration)
		c.length(path+".policy.prediction.ahead", p.GetPrediction().GetAhead(), 0, maxDuration)
	}
}
