// Package doctor finds out why a client cannot use a cluster. It checks each layer from the address up to the quotas, and
// says for each what is wrong and what to do.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// State is the result of a check.
type State string

// The states.
const (
	OK      State = "ok"
	Warning State = "warning"
	Failed  State = "failed"
)

// Finding is one result of a check.
type Finding struct {
	// Check names the check; State is its result.
	Check string `json:"check"`
	State State  `json:"state"`
	// Message describes the result; Hint says what to do, and is empty if nothing has to be done.
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Server is a node's address, as configured in the client.
type Server struct {
	Address string
	URL     *url.URL
	Quota   quotav1connect.QuotaServiceClient
	Admin   quotav1connect.AdminServiceClient
}

// Client is a client to examine.
type Client struct {
	// Servers are its nodes. Required.
	Servers []Server
	// Transport is how it reaches them. Required.
	Transport *http.Transport
	// Quotas are the names of quotas that must exist; empty: no particular ones.
	Quotas []string
	// Timeout bounds each single check. Required.
	Timeout time.Duration
	// Now is this machine's clock. Required.
	Now func() time.Time
}

// Examine runs all checks and returns their findings, in the order of the layers. It omits checks that an earlier failure
// makes impossible.
func (c *Client) Examine(ctx context.Context) []Finding {
	e := &examination{Client: c, http: &http.Client{Transport: c.Transport}}
	for _, server := range c.Servers {
		e.server(ctx, server)
	}
	if len(e.answering) == 0 {
		return e.findings
	}
	e.sameCluster()
	e.leader(ctx)
	e.requests(ctx)
	e.quotas(ctx)
	return e.findings
}

// examination is one run of Examine.
type examination struct {
	*Client

	http     *http.Client
	findings []Finding
	// answering are the servers whose API answers; statuses are their answers, in the same order.
	answering []Server
	statuses  []*quotav1.GetStatusResponse
}

func (e *examination) add(check string, state State, hint, format string, values ...any) {
	e.findings = append(e.findings, Finding{Check: check, State: state, Message: fmt.Sprintf(format, values...), Hint: hint})
}

// server checks one address: name and port, TLS, HTTP and clock, API.
func (e *examination) server(ctx context.Context, s Server) {
	if !e.endpoint(ctx, "endpoint "+s.Address, s.URL.Host) || s.URL.Scheme == "https" && !e.tls(ctx, s) || !e.clock(ctx, s) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	status, err := s.Admin.GetStatus(ctx, &quotav1.GetStatusRequest{})
	switch connect.CodeOf(err) { //nolint:exhaustive // the others are said as they are
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		e.add("token "+s.Address, Failed, tokenHint(err), "%s", message(err))
		return
	case connect.CodeUnimplemented:
		e.add("api "+s.Address, Failed, "check the address and the port: the API's default is 7450",
			"the program that answers there is not quotad")
		return
	}
	if err != nil {
		e.add("api "+s.Address, Failed, "read the node's log and quotad status", "%s", message(err))
		return
	}
	e.add("api "+s.Address, OK, "", "quotad %s, node %s (%s) of cluster %s", status.Version, status.Node, status.Role, status.ClusterId)
	e.answering, e.statuses = append(e.answering, s), append(e.statuses, status)
	for _, check := range status.Checks {
		if !check.Ok {
			e.add("health "+s.Address, Warning, "quotad status shows all checks; operations.md says what to do for each", "%s: %s", check.Name,
				check.Message)
		}
	}
}

func tokenHint(err error) string {
	if hint := infoOf(err).GetHint(); hint != "" && connect.CodeOf(err) == connect.CodePermissionDenied {
		return hint
	}
	return "name the file with the token by --token-file or QUOTAD_TOKEN_FILE; an operator mints one with quotad token new"
}

// sameCluster checks that all servers belong to one cluster.
func (e *examination) sameCluster() {
	for i, status := range e.statuses {
		if status.ClusterId != e.statuses[0].ClusterId {
			e.add("cluster", Failed, "name nodes of one cluster only", "%s is of cluster %s, %s of cluster %s",
				e.answering[0].Address, e.statuses[0].ClusterId, e.answering[i].Address, status.ClusterId)
			return
		}
	}
}

// leader checks that a leader is known, and that this machine can reach it without another node.
func (e *examination) leader(ctx context.Context) {
	known := slices.IndexFunc(e.statuses, func(s *quotav1.GetStatusResponse) bool { return s.Leader != "" })
	if known < 0 {
		e.add("leader", Failed, "a majority of the members has to run and reach each other: ask each with quotad status --check --cluster",
			"no leader is known")
		return
	}
	status := e.statuses[known]
	if slices.ContainsFunc(e.statuses, func(s *quotav1.GetStatusResponse) bool { return s.Node == status.Leader }) {
		e.add("leader", OK, "", "%s leads, and is one of the named nodes", status.Leader)
		return
	}
	if status.LeaderAddress == "" {
		e.add("leader", Warning, "", "%s leads; its API address is not known, so %s forwards calls", status.Leader, status.Node)
		return
	}
	if cause := e.dial(ctx, status.LeaderAddress); cause != nil {
		e.add("leader", Warning, "expected through a tunnel, NAT or a load balancer; otherwise open that address to clients",
			"%s leads at %s, which cannot be reached from here (%s): %s forwards calls, one hop more", status.Leader, status.LeaderAddress,
			rootCause(cause), status.Node)
		return
	}
	e.add("leader", OK, "", "%s leads at %s, which can be reached from here", status.Leader, status.LeaderAddress)
}

// requests sends a request that has to be committed, and undoes it.
func (e *examination) requests(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	began := time.Now()
	opened, err := e.answering[0].Quota.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: "quotad-doctor"})
	took := time.Since(began)
	switch connect.CodeOf(err) { //nolint:exhaustive // the others are said as they are
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		e.add("requests", Failed, tokenHint(err), "%s", message(err))
		return
	}
	if full := fullFor(err); full != "" {
		e.withoutRoom(ctx, full, err)
		return
	}
	if err != nil {
		e.notCommitted(err)
		return
	}
	_, _ = e.answering[0].Quota.CloseSession(ctx, &quotav1.CloseSessionRequest{Session: opened.Session}) // else it ends after its idle time
	e.add("requests", OK, "", "a request was committed in %s", took.Round(time.Millisecond))
}

func (e *examination) notCommitted(err error) {
	hint := infoOf(err).GetHint()
	if hint == "" {
		hint = "see quotad status --check --cluster"
	}
	e.add("requests", Failed, hint, "a request cannot be committed: %s", message(err))
}

// fullFor names what is full if a session was refused for lack of room; empty: no error, or another reason.
func fullFor(err error) string {
	switch info := infoOf(err); info.GetReason() {
	case quotav1.Reason_REASON_SESSIONS_FULL:
		return "sessions"
	case quotav1.Reason_REASON_MEMORY_FULL:
		return "memory"
	case quotav1.Reason_REASON_CALLER_BUDGET, quotav1.Reason_REASON_BUDGET_FULL:
		return info.Budget
	default:
		return ""
	}
}

// noSession is a number that no session has: numbers start at 1.
const noSession = math.MaxUint64

// withoutRoom sends a request that needs no room, after a session was refused for lack of it. An answer proves that the
// request was committed.
func (e *examination) withoutRoom(ctx context.Context, full string, refused error) {
	began := time.Now()
	_, err := e.answering[0].Quota.CloseSession(ctx, &quotav1.CloseSessionRequest{Session: noSession})
	took := time.Since(began)
	if err != nil && infoOf(err).GetReason() != quotav1.Reason_REASON_UNKNOWN_SESSION {
		e.notCommitted(err)
		return
	}
	e.add("requests", Warning, "quotad limits shows what is full, quotad status the memory; releases still work",
		"no room for a session (full: %s), although a request was committed in %s: %s", strings.ReplaceAll(full, "_", " "),
		took.Round(time.Millisecond), message(refused))
}

// quotas checks the quotas of the cluster.
func (e *examination) quotas(ctx context.Context) {
	all, err := e.listQuotas(ctx)
	switch connect.CodeOf(err) { //nolint:exhaustive // the others are said as they are
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		e.add("quotas", Warning, tokenHint(err), "they cannot be listed: %s", message(err))
		return
	}
	switch {
	case err != nil:
		e.add("quotas", Failed, "see quotad status --check --cluster", "they cannot be read: %s", message(err))
		return
	case len(all) == 0:
		e.add("quotas", Warning, "create some: quotad quota apply -f quotas.yaml, or --preset github", "the cluster has none")
	case len(e.Quotas) == 0:
		e.add("quotas", OK, "", "the cluster has %d", len(all))
	}
	for _, name := range e.Quotas {
		e.quota(name, all)
	}
}

func (e *examination) listQuotas(ctx context.Context) (all []*quotav1.QuotaStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	request := &quotav1.ListQuotasRequest{PageSize: 1000}
	for {
		page, err := e.answering[0].Quota.ListQuotas(ctx, request)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Quotas...)
		if request.PageToken = page.NextPageToken; request.PageToken == "" {
			return all, nil
		}
	}
}

// quota checks that a quota exists and that some of it is available.
func (e *examination) quota(name string, all []*quotav1.QuotaStatus) {
	check := "quota " + name
	names := make([]string, len(all))
	for i, q := range all {
		names[i] = q.GetDefinition().GetName()
	}
	at := slices.Index(names, name)
	if at < 0 {
		hint := suggest.Hint(name, names)
		if hint == "" {
			hint = "quotad quota list shows all"
		}
		e.add(check, Failed, hint, "there is no such quota")
		return
	}
	q := all[at]
	switch {
	case q.Override != nil && q.Override.Limit == 0:
		e.add(check, Failed, "quotad quota override ends it", "suspended by an operator, for %s more",
			q.Override.Left.AsDuration().Round(time.Second))
	case q.Usable == 0:
		e.add(check, Failed, "a limit above 0 opens it: quotad quota apply", "suspended: its limit is 0")
	case q.CooldownLeft != nil:
		e.add(check, Warning, "wait, or end it with quotad quota reopen "+name, "closed for %s: the provider refused a call",
			q.CooldownLeft.AsDuration().Round(time.Second))
	case q.AvailableWithParents <= 0:
		e.add(check, Warning, "wait with --wait; quotad usage shows who uses it", "nothing is available of %d", q.Usable)
	default:
		e.add(check, OK, "", "%d of %d available", q.AvailableWithParents, q.Usable)
	}
}

// infoOf returns the cluster's typed detail of an error; nil: it has none, which the getters accept.
func infoOf(err error) *quotav1.ErrorInfo {
	rpc, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return nil
	}
	for _, detail := range rpc.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*quotav1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}

// message returns the text of an API error without its code.
func message(err error) string {
	if rpc, ok := errors.AsType[*connect.Error](err); ok {
		return strings.TrimSpace(rpc.Message())
	}
	return err.Error()
}
