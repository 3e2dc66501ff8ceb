package rpc

import (
	"context"
	"errors"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Batch implements QuotaService: any mix of commands, each judged alone, with results by position.
func (s *quotaService) Batch(ctx context.Context, req *quotav1.BatchRequest) (*quotav1.BatchResponse, error) {
	return call(ctx, s.Server, verbOfEach, req, s.batch, leader.Batch)
}

// Bytes to count for the answer to a command before it is known. An error has about commandAnswer bytes. A result without items has less
// than resultAnswer, an item without its name less than itemAnswer.
const (
	commandAnswer = 168
	resultAnswer  = 64
	itemAnswer    = 48
	// answersAtOnce bounds the commands that are counted under one lock of the state.
	answersAtOnce = 256
)

// reserveAnswer takes room for the answer of a Batch before any command runs, while the Batch can still be refused. Results may be many
// times as long as their commands, even where each command is refused.
func (s *Server) reserveAnswer(ctx context.Context, r *request, req proto.Message) error {
	batch, ok := req.(*quotav1.BatchRequest)
	if !ok || r.room == nil {
		return nil
	}
	n, leases := 0, []namedLease(nil)
	for _, c := range batch.Commands {
		if named := leaseOf(c); named.lease != 0 {
			leases = append(leases, named)
			continue
		}
		n += max(commandAnswer, resultAnswer+grantAnswer(c.GetReserve()))
	}
	for some := range slices.Chunk(leases, answersAtOnce) { // most batches name no lease: they never lock the state
		err := s.node.Read(ctx, raftnode.Stale, func(state *fsm.State, _ fsm.Clock, _ raftnode.Position) {
			for _, named := range some {
				n += max(commandAnswer, resultAnswer+named.answer(state))
			}
		})
		if err != nil {
			return err
		}
	}
	return r.room.reserve(n)
}

// grantAnswer bounds the bytes of the items in the result of a Reserve; 0 without one.
func grantAnswer(r *quotav1.ReserveRequest) (n int) {
	for _, item := range r.GetItems() {
		n += itemAnswer + len(item.GetQuota())
	}
	if r.GetConsume() {
		return 2 * n // items of the lease and of the operation
	}
	return n
}

// namedLease is a lease that a command names; times is how often its items may appear in the result.
type namedLease struct {
	lease uint64
	times int
}

func leaseOf(c *quotav1.Command) namedLease {
	switch kind := c.GetKind().(type) {
	case *quotav1.Command_Consume:
		return namedLease{kind.Consume.GetLease(), 1}
	case *quotav1.Command_Settle:
		return namedLease{kind.Settle.GetLease(), 2} // returned items, and overruns
	case *quotav1.Command_Release:
		return namedLease{kind.Release.GetLease(), 1}
	case *quotav1.Command_Renew:
		return namedLease{kind.Renew.GetLease(), 1}
	case *quotav1.Command_Report:
		return namedLease{kind.Report.GetLease(), 2} // the outcome of each quota, and the signals that were read
	}
	return namedLease{}
}

// answer bounds the bytes of the lease's items in the result. The leader counts leases that this node does not know.
func (l namedLease) answer(state *fsm.State) (n int) {
	for _, name := range state.ItemsOf(l.lease) {
		n += itemAnswer + len(name)
	}
	return l.times * n
}

func (s *quotaService) batch(ctx context.Context, r *request, req *quotav1.BatchRequest) (*quotav1.BatchResponse, error) {
	res := &quotav1.BatchResponse{Results: make([]*quotav1.CommandResult, len(req.Commands))}
	commands := make([]*logpb.Command, 0, len(req.Commands))
	positions := make([]int, 0, len(req.Commands))
	read := map[int][]*quotav1.Signal(nil) // signals read from the answers of reports
	for i, c := range req.Commands {
		command, err := batchCommand(c, r.who, i)
		if report := c.GetReport(); err == nil && report.GetAnswer() != nil {
			if read == nil {
				read = map[int][]*quotav1.Signal{}
			}
			command, read[i], err = s.readReport(ctx, report, r.who)
		}
		if err != nil {
			res.Results[i] = commandError(err)
			continue
		}
		commands, positions = append(commands, command), append(positions, i)
	}
	results, at, err := s.node.Propose(ctx, commands...)
	if notAccepted := (*raftnode.NotAcceptedError)(nil); errors.As(err, &notAccepted) &&
		(notAccepted.Cause == raftnode.DiskFull || notAccepted.Cause == raftnode.MemoryFull) {
		commands, positions = withoutReserves(res, commands, positions, err)
		results, at, err = s.node.Propose(ctx, commands...)
	}
	if err != nil {
		return nil, err
	}
	res.Meta = s.meta(r, at)
	clock, shared := s.node.Clock(), new(durations)
	for n, result := range results {
		i := positions[n]
		res.Results[i] = s.batchResult(req.Commands[i], result, clock, shared)
		r.who.noteClass(req.Commands[i].GetReserve().GetClass(), res.Results[i].GetReserve().GetRefusal())
		if report := res.Results[i].GetReport(); report != nil {
			report.Signals = read[i]
		}
	}
	return res, nil
}

// withoutReserves answers each Reserve with an error and returns the other commands with their positions.
func withoutReserves(
	res *quotav1.BatchResponse, commands []*logpb.Command, positions []int, err error,
) (left []*logpb.Command, at []int) {
	for i, command := range commands {
		if command.GetReserve() != nil {
			res.Results[positions[i]] = commandError(err)
			continue
		}
		left, at = append(left, command), append(at, positions[i])
	}
	return left, at
}

// batchCommand checks and translates the command at a position of a Batch.
func batchCommand(c *quotav1.Command, who *caller, position int) (*logpb.Command, error) {
	var request proto.Message
	var command *logpb.Command
	verb := VerbUse
	switch kind := c.GetKind().(type) {
	case *quotav1.Command_Reserve:
		request = kind.Reserve
	case *quotav1.Command_Consume:
		request = kind.Consume
	case *quotav1.Command_Settle:
		request = kind.Settle
	case *quotav1.Command_Release:
		request = kind.Release
	case *quotav1.Command_Renew:
		request = kind.Renew
	case *quotav1.Command_Withdraw:
		request = kind.Withdraw
	case *quotav1.Command_Report:
		request, verb = kind.Report, VerbReport
	default:
		return nil, invalid(commandPath(position), "must name a command", "reserve, consume, settle, release, renew, withdraw or report")
	}
	if err := who.may(verb); err != nil {
		return nil, err
	}
	if err := validateCommand(position, request); err != nil {
		return nil, err
	}
	if r := c.GetReserve(); r.GetWait().AsDuration() > 0 && r.RequestId == nil {
		return nil, invalid(commandPath(position)+".wait", "needs a request_id, because a batch does not wait",
			"set request_id, and ask for the outcome with the same one")
	}
	switch kind := c.Kind.(type) {
	case *quotav1.Command_Reserve:
		if err := who.mayActFor(kind.Reserve.Holder); err != nil {
			return nil, err
		}
		command = reserveCommand(kind.Reserve, who)
	case *quotav1.Command_Consume:
		command = consumeCommand(kind.Consume, who)
	case *quotav1.Command_Settle:
		command = settleCommand(kind.Settle, who)
	case *quotav1.Command_Release:
		command = releaseCommand(kind.Release, who)
	case *quotav1.Command_Renew:
		command = renewCommand(kind.Renew, who)
	case *quotav1.Command_Withdraw:
		command = withdrawCommand(kind.Withdraw, who)
	case *quotav1.Command_Report:
		command = reportCommand(kind.Report, kind.Report.Signals, 0, who)
	}
	return command, nil
}

// batchResult makes the result of one command of a Batch, without the meta that the Batch has for all.
func (s *Server) batchResult(c *quotav1.Command, result *logpb.Result, clock fsm.Clock, d *durations) *quotav1.CommandResult {
	if f := result.GetFailure(); f != nil {
		return commandError(failed(f))
	}
	switch c.Kind.(type) {
	case *quotav1.Command_Reserve:
		var made struct {
			result quotav1.CommandResult
			kind   quotav1.CommandResult_Reserve
		}
		made.result.Kind, made.kind.Reserve = &made.kind, s.reserved(result, nil, clock, d)
		return &made.result
	case *quotav1.Command_Consume:
		return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Consume{Consume: s.consumed(result, nil, clock)}}
	case *quotav1.Command_Settle:
		return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Settle{Settle: settled(result, nil)}}
	case *quotav1.Command_Release:
		return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Release{Release: released(result, nil)}}
	case *quotav1.Command_Renew:
		return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Renew{Renew: renewed(result, nil, clock)}}
	case *quotav1.Command_Withdraw:
		return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Withdraw{Withdraw: &quotav1.WithdrawResponse{}}}
	}
	return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Report{Report: &quotav1.ReportResponse{
		Quotas: apiReported(result.GetReported(), clock),
	}}}
}

func commandError(err error) *quotav1.CommandResult {
	converted := nodeError(err)
	return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Error{Error: &quotav1.CommandError{
		Code: connect.CodeOf(converted).String(), Message: converted.Message(), Info: infoOf(converted),
	}}}
}
