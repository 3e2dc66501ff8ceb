package fakequota

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Cluster is a store behind some nodes, one of which leads. It is an HTTP client: requests to the nodes' addresses reach it without a
// network, so that it works in virtual time.
type Cluster struct {
	state *state
	nodes []*Node
	// Guarded by state.mu.
	leader  int
	batches [][]int
}

// Node is one node of a Cluster.
type Node struct {
	quotav1connect.UnimplementedQuotaServiceHandler
	quotav1connect.UnimplementedTaskServiceHandler
	cluster *Cluster
	index   int
	handler http.Handler
	// Guarded by state.mu.
	fault  Fault
	asked  int
	served func()
}

// Fault is a fault of a node.
type Fault int

// The faults.
const (
	// Healthy: no fault.
	Healthy Fault = 0
	// Refusing: nobody listens at its address.
	Refusing Fault = 1
	// Silent: requests to it are lost.
	Silent Fault = 2
	// Mute: it works, but its answers are lost.
	Mute Fault = 3
	// Full: its disk is nearly full, so it accepts no Reserve.
	Full Fault = 4
	// Spent: the caller's budget of sessions and leases is used up.
	Spent Fault = 5
)

// New returns a cluster of n nodes, the first of which leads.
func New(n int) *Cluster {
	c := &Cluster{state: newState()}
	for i := range n {
		node := &Node{cluster: c, index: i}
		mux := http.NewServeMux()
		mux.Handle(quotav1connect.NewQuotaServiceHandler(node))
		mux.Handle(quotav1connect.NewTaskServiceHandler(node))
		node.handler = mux
		c.nodes = append(c.nodes, node)
	}
	return c
}

// Addresses returns the nodes' addresses.
func (c *Cluster) Addresses() []string {
	var out []string
	for _, node := range c.nodes {
		out = append(out, node.address())
	}
	return out
}

func (n *Node) address() string { return fmt.Sprintf("node%d.example:7450", n.index) }

// Set creates or replaces a quota, and serves waiting Reserves.
func (c *Cluster) Set(name string, quota Quota) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	c.state.quotas[name] = &quota
	c.state.serve()
}

// RefuseFor makes the cluster refuse every Reserve as not servable for this long.
func (c *Cluster) RefuseFor(d time.Duration) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	c.state.refusedFor = d
}

// Add adds units to a quota.
func (c *Cluster) Add(name string, units int64) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	c.state.quotas[name].Available += units
	c.state.serve()
}

// Available returns the units in a quota.
func (c *Cluster) Available(name string) int64 {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return c.state.quotas[name].Available
}

// Executed returns how many commands of a kind were carried out, without repeats.
func (c *Cluster) Executed(kind string) int {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return c.state.executed[kind]
}

// Reports returns the received reports.
func (c *Cluster) Reports() []*quotav1.ReportRequest {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return append([]*quotav1.ReportRequest(nil), c.state.reports...)
}

// Holders returns the holder of each Reserve.
func (c *Cluster) Holders() []string {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return append([]string(nil), c.state.holders...)
}

// Leases returns the number of live leases.
func (c *Cluster) Leases() int {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return len(c.state.leases)
}

// Waiting returns the number of waiting Reserves.
func (c *Cluster) Waiting() int {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return len(c.state.waiters)
}

// Sessions returns the number of open sessions.
func (c *Cluster) Sessions() int {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return len(c.state.sessions)
}

// ForgetSessions expires all sessions.
func (c *Cluster) ForgetSessions() {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	clear(c.state.sessions)
}

// CloseWindow closes the window of a quota: what leases hold of it becomes void.
func (c *Cluster) CloseWindow(quota string) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	for _, l := range c.state.leases {
		if held := l.held[quota]; held > 0 {
			l.closed = append(l.closed, quota)
			c.state.quotas[quota].Available += held
			delete(l.held, quota)
		}
	}
}

// Revoke ends all leases.
func (c *Cluster) Revoke() {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	for _, l := range c.state.leases {
		c.state.drop(l)
	}
}

// Lead makes a node the leader; -1: none.
func (c *Cluster) Lead(index int) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	c.leader = index
}

// Break gives a node a fault.
func (c *Cluster) Break(index int, fault Fault) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	c.nodes[index].fault = fault
}

// Asked returns how many requests reached a node.
func (c *Cluster) Asked(index int) int {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return c.nodes[index].asked
}

// BatchSizes returns the number of commands in each batch that the leader carried out.
func (c *Cluster) BatchSizes() []int {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	var out []int
	for _, batch := range c.batches {
		out = append(out, len(batch))
	}
	return out
}

// AfterBatch sets a function to call once after a node carries out its next batch, before the answer.
func (c *Cluster) AfterBatch(index int, f func()) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	c.nodes[index].served = f
}

// Do sends a request to the node in its URL.
func (c *Cluster) Do(request *http.Request) (*http.Response, error) {
	for _, node := range c.nodes {
		if node.address() == request.URL.Host {
			return node.do(request)
		}
	}
	return nil, &net.OpError{Op: "dial", Err: errors.New("no such host")}
}

func (n *Node) do(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	n.cluster.state.mu.Lock()
	fault, handler := n.fault, n.handler
	if fault != Refusing {
		n.asked++
	}
	if leader := n.cluster.leader; leader >= 0 && request.Header.Get("Quotad-No-Forward") == "" {
		// Nodes reach each other in spite of faults between them and the caller.
		handler = n.cluster.nodes[leader].handler
	}
	n.cluster.state.mu.Unlock()
	switch fault {
	case Refusing:
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	case Silent:
		<-ctx.Done()
		return nil, ctx.Err()
	case Healthy, Mute, Full, Spent:
	}
	recorder := httptest.NewRecorder()
	served := make(chan struct{})
	go func() {
		defer close(served)
		handler.ServeHTTP(recorder, request)
	}()
	select {
	case <-served:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.cluster.state.mu.Lock()
	fault = n.fault
	n.cluster.state.mu.Unlock()
	if fault == Mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return recorder.Result(), nil
}

// lead returns an error unless the node leads. If it leads, lead returns with the store locked.
func (n *Node) lead() error {
	n.cluster.state.mu.Lock()
	if n.cluster.leader == n.index {
		return nil
	}
	defer n.cluster.state.mu.Unlock()
	info := &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_NO_LEADER, NotAccepted: true}
	if n.cluster.leader >= 0 {
		info.LeaderAddress = n.cluster.nodes[n.cluster.leader].address()
	}
	return detailed(connect.CodeUnavailable, info)
}

func detailed(code connect.Code, info *quotav1.ErrorInfo) error {
	err := connect.NewError(code, errors.New(info.GetReason().String()))
	if detail, detailErr := connect.NewErrorDetail(info); detailErr == nil {
		err.AddDetail(detail)
	}
	return err
}

// OpenSession implements the API.
func (n *Node) OpenSession(context.Context, *quotav1.OpenSessionRequest) (*quotav1.OpenSessionResponse, error) {
	if err := n.lead(); err != nil {
		return nil, err
	}
	defer n.cluster.state.mu.Unlock()
	if n.fault == Spent {
		return nil, detailed(connect.CodeResourceExhausted, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_CALLER_BUDGET, Budget: "sessions"})
	}
	id := n.cluster.state.next()
	n.cluster.state.sessions[id] = true
	return &quotav1.OpenSessionResponse{Session: id}, nil
}

// CloseSession implements the API.
func (n *Node) CloseSession(_ context.Context, request *quotav1.CloseSessionRequest) (*quotav1.CloseSessionResponse, error) {
	if err := n.lead(); err != nil {
		return nil, err
	}
	defer n.cluster.state.mu.Unlock()
	delete(n.cluster.state.sessions, request.GetSession())
	return &quotav1.CloseSessionResponse{}, nil
}

// Batch implements the API.
func (n *Node) Batch(_ context.Context, request *quotav1.BatchRequest) (*quotav1.BatchResponse, error) {
	start := time.Now()
	if err := n.lead(); err != nil {
		return nil, err
	}
	response := &quotav1.BatchResponse{}
	for _, command := range request.GetCommands() {
		if n.fault == Full && command.GetReserve() != nil {
			response.Results = append(response.Results, failure(quotav1.Reason_REASON_DISK_FULL))
			continue
		}
		if reserve := command.GetReserve(); n.fault == Spent && reserve != nil {
			response.Results = append(response.Results,
				&quotav1.CommandResult{Kind: &quotav1.CommandResult_Reserve{Reserve: &quotav1.ReserveResponse{
					Outcome: &quotav1.ReserveResponse_Refusal{Refusal: &quotav1.Refusal{
						Reason: quotav1.Reason_REASON_CALLER_BUDGET, Quota: reserve.GetItems()[0].GetQuota(), Budget: "leases",
						RetryAfter: durationpb.New(time.Second),
					}},
				}}})
			continue
		}
		response.Results = append(response.Results, n.cluster.state.run(command))
	}
	n.cluster.batches = append(n.cluster.batches, make([]int, len(request.GetCommands())))
	served := n.served
	n.served = nil
	n.cluster.state.mu.Unlock()
	if served != nil {
		served()
	}
	response.Meta = &quotav1.Meta{ServedIn: durationpb.New(time.Since(start))}
	return response, nil
}

// Reserve implements the API for Reserves that wait: it attaches to the waiting one.
func (n *Node) Reserve(ctx context.Context, request *quotav1.ReserveRequest) (*quotav1.ReserveResponse, error) {
	start := time.Now()
	if err := n.lead(); err != nil {
		return nil, err
	}
	s := n.cluster.state
	defer s.mu.Unlock()
	for {
		result := s.run(&quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: request}})
		if bad := result.GetError(); bad != nil {
			return nil, detailed(connect.CodeFailedPrecondition, bad.GetInfo())
		}
		response := result.GetReserve()
		waiting := response.GetWaiting()
		if waiting == nil {
			response.Meta = &quotav1.Meta{ServedIn: durationpb.New(time.Since(start))}
			return response, nil
		}
		if err := n.wait(ctx, waiting.GetTicket()); err != nil {
			return nil, err
		}
	}
}

// wait waits until a Reserve leaves the queue. The store is locked before and after.
func (n *Node) wait(ctx context.Context, ticket uint64) error {
	s := n.cluster.state
	for _, w := range s.waiters {
		if w.ticket != ticket {
			continue
		}
		s.mu.Unlock()
		end := time.NewTimer(time.Until(w.until))
		defer end.Stop()
		var err error
		select {
		case <-w.done:
		case <-end.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		s.mu.Lock()
		s.serve()
		return err
	}
	return nil
}

// GetQuota implements the API.
func (n *Node) GetQuota(_ context.Context, request *quotav1.GetQuotaRequest) (*quotav1.GetQuotaResponse, error) {
	if err := n.lead(); err != nil {
		return nil, err
	}
	defer n.cluster.state.mu.Unlock()
	q := n.cluster.state.quotas[request.GetName()]
	if q == nil {
		return nil, detailed(connect.CodeNotFound, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_QUOTA, Quota: request.GetName()})
	}
	status := &quotav1.QuotaStatus{
		Definition: &quotav1.Quota{Name: request.GetName()}, Usable: q.Usable, Available: q.Available, Leases: q.Leases,
	}
	if q.Leases == 0 {
		status.Leases = int64(len(n.cluster.state.leases))
	}
	status.Definition.Rule = &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: q.Usable, Per: durationpb.New(time.Minute)}}
	if q.Slots {
		status.Definition.Rule = &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: q.Usable}}
	}
	return &quotav1.GetQuotaResponse{Quota: status}, nil
}

// CheckFence implements the API.
func (n *Node) CheckFence(_ context.Context, request *quotav1.CheckFenceRequest) (*quotav1.CheckFenceResponse, error) {
	if err := n.lead(); err != nil {
		return nil, err
	}
	defer n.cluster.state.mu.Unlock()
	l, bad := n.cluster.state.find(request.GetLease(), request.GetFence())
	if bad != nil {
		return &quotav1.CheckFenceResponse{FenceCounter: n.cluster.state.counter}, nil
	}
	return &quotav1.CheckFenceResponse{Valid: true, ExpiresIn: left(l.deadline), FenceCounter: n.cluster.state.counter}, nil
}
