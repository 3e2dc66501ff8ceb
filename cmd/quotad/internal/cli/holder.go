package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/cmd/quotad/internal/leaserun"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

// leaseFlags name a lease; every command that names one carries its fence.
type leaseFlags struct{ lease, fence string }

func (f *leaseFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.lease, "lease", "", "id of the lease, from reserve (env "+leaserun.LeaseVariable+")")
	cmd.Flags().StringVar(&f.fence, "fence", "", "fence of the lease, from reserve (env "+leaserun.FenceVariable+")")
}

// readLease reads the flags, or the environment that "quotad run" set. A lease and its fence come from the same source.
func (a *App) readLease(cmd *cobra.Command, f *leaseFlags) (lease, fence uint64, err error) {
	if f.lease == "" && f.fence == "" {
		f.lease, _ = a.lookup(leaserun.LeaseVariable)
		f.fence, _ = a.lookup(leaserun.FenceVariable)
	}
	if f.lease == "" || f.fence == "" {
		return 0, 0, usagef(cmd, "reserve prints both", "--lease and --fence are both needed")
	}
	if lease, err = number(cmd, "--lease", f.lease); err != nil {
		return 0, 0, err
	}
	fence, err = number(cmd, "--fence", f.fence)
	return lease, fence, err
}

// readItems reads arguments of the form QUOTA or QUOTA=AMOUNT.
func readItems(cmd *cobra.Command, args []string, least int64) ([]*quotav1.Item, error) {
	items := make([]*quotav1.Item, len(args))
	for i, arg := range args {
		name, amount, given := strings.Cut(arg, "=")
		items[i] = &quotav1.Item{Quota: name}
		if !given {
			continue
		}
		value, err := strconv.ParseInt(amount, 10, 64)
		if err != nil || value < least || value > quotafile.MaxAmount {
			return nil, usagef(cmd, "", "%q: the amount must be %d to %d", arg, least, int64(quotafile.MaxAmount))
		}
		items[i].Amount = &value
	}
	return items, nil
}

// reserveFlags are the options of reserve.
type reserveFlags struct {
	holder, ttl, wait, class, member string
	consume, resume                  bool
	emergency, fallback              bool
}

func (a *App) reserveCommand() *cobra.Command {
	var f reserveFlags
	cmd := &cobra.Command{
		Use:   "reserve QUOTA[=AMOUNT]... --holder NAME",
		Short: "Reserve amounts of one or more quotas, all or nothing",
		Long: `Reserve amounts of one or more quotas, all or nothing. An argument without an amount takes the quota's default estimate.
After a grant the command prints the lease and its fence, and exits with 0. After a refusal it prints the reason and when
to retry, and exits with 4. With --wait the request waits in the queue that long. With --consume everything is spendable
at once, as operation 1: make your call within the printed time.`,
		Example: `  quotad reserve github/core=7 --holder me --ttl 30s
  quotad reserve openai/requests openai/tokens=800 --holder me --consume --wait 20s -o json`,
		Args: arguments("QUOTA..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := f.request(cmd, args)
			if err != nil {
				return err
			}
			return a.reserve(cmd, request)
		},
	}
	cmd.Flags().StringVar(&f.holder, "holder", "", "name of the holder, the same after a restart")
	cmd.Flags().StringVar(&f.ttl, "ttl", "", "length of the lease (default 5m)")
	cmd.Flags().StringVar(&f.wait, "wait", "", "how long to wait in the queue, at most 10m (default: not at all)")
	cmd.Flags().StringVar(&f.class, "class", "", "class below the holder's own: critical, standard, background")
	cmd.Flags().BoolVar(&f.consume, "consume", false, "consume everything at once, as operation 1")
	cmd.Flags().BoolVar(&f.emergency, "emergency", false, "use the last of a window with strict zones (critical only)")
	cmd.Flags().BoolVar(&f.fallback, "fallback", false, "also accept the next quotas of the fallback chains")
	cmd.Flags().StringVar(&f.member, "member", "", "member of the pools among the items (default the one with the most room)")
	cmd.Flags().BoolVar(&f.resume, "resume", false, "end all older leases of this holder first")
	return a.clientFlags(cmd)
}

func (f *reserveFlags) request(cmd *cobra.Command, args []string) (*quotav1.ReserveRequest, error) {
	if f.holder == "" {
		return nil, usagef(cmd, "", "--holder is missing")
	}
	items, err := readItems(cmd, args, 1)
	if err != nil {
		return nil, err
	}
	request := &quotav1.ReserveRequest{
		Holder: f.holder, Items: items, Consume: f.consume, Resume: f.resume, Emergency: f.emergency,
		Fallback: f.fallback, Member: f.member,
	}
	if request.Ttl, err = durationFlag(cmd, "ttl", f.ttl); err != nil {
		return nil, err
	}
	if request.Wait, err = durationFlag(cmd, "wait", f.wait); err != nil {
		return nil, err
	}
	if f.class != "" {
		class, ok := quotafile.ParseClass(f.class)
		if !ok {
			return nil, usagef(cmd, "critical, standard or background", "unknown --class %q", f.class)
		}
		request.Class = class
	}
	return request, nil
}

func (a *App) reserve(cmd *cobra.Command, request *quotav1.ReserveRequest) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	id, end, err := oneRequest(cmd.Context(), c, request.Holder, byNature)
	if err != nil {
		return err
	}
	defer end()
	request.RequestId = id
	patience := request.Wait.AsDuration()
	answer, err := call(cmd.Context(), c, withID, patience, func(ctx context.Context, n node) (*quotav1.ReserveResponse, error) {
		return n.quota.Reserve(ctx, request)
	})
	if err != nil {
		return err
	}
	if a.format == formatJSON {
		if err := output.JSON(a.Out, answer); err != nil {
			return err
		}
	}
	if refusal := answer.GetRefusal(); refusal != nil {
		return refused(refusal)
	}
	lease := answer.GetLease()
	if lease == nil {
		return fail(ExitFailure, "", "the answer holds neither a lease nor a refusal")
	}
	if a.format == formatJSON {
		return nil
	}
	table := output.Table{}
	table.Add("lease", output.Int(lease.Id))
	table.Add("fence", output.Int(lease.Fence))
	table.Add("items", itemsText(lease.Items))
	if i := slices.IndexFunc(lease.Items, func(item *quotav1.GrantedItem) bool { return item.Member != "" }); i >= 0 {
		table.Add("member", lease.Items[i].Member)
	}
	table.Add("class", quotafile.ClassWord(lease.Class))
	table.Add("expires in", output.Duration(lease.ExpiresIn))
	addOperation(&table, lease.Operation)
	if pressure := lease.BackPressure; pressure != nil {
		table.Add("back pressure", pressureText(pressure))
	}
	return table.Write(a.Out)
}

// addOperation adds the spendable amounts and their deadline.
func addOperation(table *output.Table, operation *quotav1.Operation) {
	if operation == nil {
		return
	}
	table.Add("operation", output.Int(operation.Op))
	table.Add("spend", itemsText(operation.Items))
	table.Add("spend within", output.Duration(operation.SpendIn))
}

// refused turns a refusal into an error with an exit code of its own.
func refused(refusal *quotav1.Refusal) error {
	info := &quotav1.ErrorInfo{
		Reason: refusal.Reason, Quota: refusal.Quota, RetryAfter: refusal.RetryAfter, Hint: refusal.Advice, Budget: refusal.Budget,
	}
	if refusal.Budget != "" {
		return &failure{
			code: ExitRefused, info: info, hint: refusal.Advice,
			message: "refused: " + reasonWord(refusal.Reason) + ", whatever there is of " + refusal.Quota,
		}
	}
	return &failure{
		code: ExitRefused, info: info, hint: refusal.Advice,
		message: fmt.Sprintf("refused: %s of %s, %d available", reasonWord(refusal.Reason), refusal.Quota, refusal.Available),
	}
}

func (a *App) consumeCommand() *cobra.Command {
	var f leaseFlags
	var op uint64
	cmd := &cobra.Command{
		Use:   "consume [QUOTA[=AMOUNT]...] --lease ID --fence FENCE",
		Short: "Make held amounts spendable, before you spend them",
		Long: `Make held amounts spendable; without arguments, all of them. Make your call within the printed time. You choose the
operation's number; repeating a command with the same number is safe.`,
		Example: `  quotad consume github/core=3 --lease 42 --fence 281474976710698 --op 1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			lease, fence, err := a.readLease(cmd, &f)
			if err != nil {
				return err
			}
			items, err := readItems(cmd, args, 1)
			if err != nil {
				return err
			}
			request := &quotav1.ConsumeRequest{Lease: lease, Fence: fence, Op: op, Items: items}
			return a.consume(cmd, request)
		},
	}
	f.register(cmd)
	cmd.Flags().Uint64Var(&op, "op", 1, "your number for this operation, unique within the lease")
	return a.clientFlags(cmd)
}

func (a *App) consume(cmd *cobra.Command, request *quotav1.ConsumeRequest) error {
	once := requestIdentity[quotav1.ConsumeRequest]{without: byNature}
	return holderCall(a, cmd, request, once, func(ctx context.Context, n node, r *quotav1.ConsumeRequest) (*quotav1.ConsumeResponse, error) {
		return n.quota.Consume(ctx, r)
	}, func(answer *quotav1.ConsumeResponse, table *output.Table) error {
		if refusal := answer.GetRefusal(); refusal != nil {
			return refused(refusal)
		}
		addOperation(table, answer.GetOperation())
		return nil
	})
}

// protoAnswer is an answer that is a protobuf message.
type protoAnswer[Answer any] interface {
	*Answer
	proto.Message
}

// oneRequest opens a session for one request of a holder (empty: unknown), so that the request is safe to send again, also
// to another node. end closes the session and cancels a wait whose outcome nobody would receive. If end fails, the session
// ends after its idle time.
func oneRequest(ctx context.Context, c *cluster, holder string, again repeat) (id *quotav1.RequestId, end func(), err error) {
	opened, err := call(ctx, c, again, 0, func(ctx context.Context, n node) (*quotav1.OpenSessionResponse, error) {
		return n.quota.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: holder})
	})
	if err != nil {
		return nil, nil, err
	}
	return &quotav1.RequestId{Session: opened.Session, Seq: 1}, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endSessionWithin)
		defer cancel()
		_, _ = call(ctx, c, byNature, 0, func(ctx context.Context, n node) (*quotav1.CloseSessionResponse, error) {
			return n.quota.CloseSession(ctx, &quotav1.CloseSessionRequest{Session: opened.Session})
		})
	}, nil
}

// endSessionWithin bounds how long a finished command waits to close its session.
const endSessionWithin = time.Second

// requestIdentity makes a request safe to repeat.
type requestIdentity[Request any] struct {
	// set sets the request's id to that of a session's request; nil: the request needs none.
	set func(*Request, *quotav1.RequestId)
	// without says when the request may be sent again without an id.
	without repeat
}

// holderCall sends a request, prints the answer as JSON or as the table that rows fills, and returns the error of rows.
func holderCall[Request, Answer any, A protoAnswer[Answer]](
	a *App, cmd *cobra.Command, request *Request, once requestIdentity[Request], send func(context.Context, node, *Request) (*Answer, error),
	rows func(*Answer, *output.Table) error,
) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	answer, err := sendOnce(cmd.Context(), c, request, once, send)
	if err != nil {
		return err
	}
	table := output.Table{}
	verdict := rows(answer, &table)
	if a.format == formatJSON {
		err = output.JSON(a.Out, A(answer))
	} else {
		err = table.Write(a.Out)
	}
	if verdict != nil {
		return verdict
	}
	return err
}

// sendOnce sends a request under the id of a session, so that it is safe to send again. Returning amounts must not depend
// on a budget that may be full: if the cluster has no room for the session or the request's result, sendOnce sends the
// request without an id. A Settle, and a Release of a whole lease, remain safe to repeat: the lease, its fence and the
// operation's number identify them. A Release of items or a Report is then not sent again after an attempt that may have
// been applied. After an attempt with an id that may have been applied, nothing is sent without one.
func sendOnce[Request, Answer any](ctx context.Context, c *cluster, request *Request, once requestIdentity[Request],
	send func(context.Context, node, *Request) (*Answer, error),
) (*Answer, error) {
	ask := func(ctx context.Context, n node) (*Answer, error) { return send(ctx, n, request) }
	if once.set == nil {
		return call(ctx, c, once.without, 0, ask)
	}
	id, end, err := oneRequest(ctx, c, "", withRoom)
	if err == nil {
		defer end()
		once.set(request, id)
		var answer *Answer
		if answer, err = call(ctx, c, withID, 0, ask); err == nil {
			return answer, nil
		}
	}
	if !lacksRoom(err) {
		return nil, err
	}
	once.set(request, nil)
	return call(ctx, c, once.without, 0, ask)
}

func (a *App) settleCommand() *cobra.Command {
	var f leaseFlags
	var op uint64
	var unspent, actual []string
	var final, release bool
	cmd := &cobra.Command{
		Use:   "settle --lease ID --fence FENCE --op N [--unspent QUOTA=AMOUNT] [--actual QUOTA=AMOUNT]",
		Short: "Return unspent amounts or record actual use",
		Example: `  quotad settle --lease 42 --fence 281474976710698 --op 1 --actual openai/tokens=612 --release
  quotad settle --lease 42 --fence 281474976710698 --op 1 --unspent github/core=2`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			lease, fence, err := a.readLease(cmd, &f)
			if err != nil {
				return err
			}
			request := &quotav1.SettleRequest{
				Lease: lease, Fence: fence, Op: op, Final: final, Release: release,
			}
			if request.Unspent, err = readItems(cmd, unspent, 1); err != nil {
				return err
			}
			if request.Actual, err = readItems(cmd, actual, 0); err != nil {
				return err
			}
			once := requestIdentity[quotav1.SettleRequest]{
				set: func(r *quotav1.SettleRequest, id *quotav1.RequestId) { r.RequestId = id }, without: byNature,
			}
			return holderCall(a, cmd, request, once, func(ctx context.Context, n node, r *quotav1.SettleRequest) (*quotav1.SettleResponse, error) {
				return n.quota.Settle(ctx, r)
			}, func(answer *quotav1.SettleResponse, table *output.Table) error {
				table.Add("returned", plainItemsText(answer.Returned))
				table.Add("overrun", plainItemsText(answer.Overrun))
				table.Add("lease ended", strconv.FormatBool(answer.Released))
				return nil
			})
		},
	}
	f.register(cmd)
	cmd.Flags().Uint64Var(&op, "op", 1, "number of the operation")
	cmd.Flags().StringSliceVar(&unspent, "unspent", nil, "amount that will certainly not be spent, QUOTA=AMOUNT")
	cmd.Flags().StringSliceVar(&actual, "actual", nil, "amount that was really used, QUOTA=AMOUNT; final")
	cmd.Flags().BoolVar(&final, "final", false, "end the operation, also without --actual")
	cmd.Flags().BoolVar(&release, "release", false, "end the lease too")
	return a.clientFlags(cmd)
}

func (a *App) renewCommand() *cobra.Command {
	var f leaseFlags
	var ttl string
	cmd := &cobra.Command{
		Use:     "renew --lease ID --fence FENCE",
		Short:   "Move a lease's deadline",
		Example: `  quotad renew --lease 42 --fence 281474976710698 --ttl 5m`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			lease, fence, err := a.readLease(cmd, &f)
			if err != nil {
				return err
			}
			length, err := durationFlag(cmd, "ttl", ttl)
			if err != nil {
				return err
			}
			request := &quotav1.RenewRequest{Lease: lease, Fence: fence, Ttl: length}
			once := requestIdentity[quotav1.RenewRequest]{without: byNature}
			return holderCall(a, cmd, request, once, func(ctx context.Context, n node, r *quotav1.RenewRequest) (*quotav1.RenewResponse, error) {
				return n.quota.Renew(ctx, r)
			}, func(answer *quotav1.RenewResponse, table *output.Table) error {
				table.Add("expires in", output.Duration(answer.ExpiresIn))
				return nil
			})
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&ttl, "ttl", "", "new length from now (default: the length in reserve)")
	return a.clientFlags(cmd)
}

func (a *App) releaseCommand() *cobra.Command {
	var f leaseFlags
	cmd := &cobra.Command{
		Use:   "release [QUOTA[=AMOUNT]...] --lease ID --fence FENCE",
		Short: "Release held amounts; without arguments, all of them and the lease",
		Example: `  quotad release --lease 42 --fence 281474976710698
  quotad release github/core=2 --lease 42 --fence 281474976710698`,
		RunE: func(cmd *cobra.Command, args []string) error {
			lease, fence, err := a.readLease(cmd, &f)
			if err != nil {
				return err
			}
			items, err := readItems(cmd, args, 1)
			if err != nil {
				return err
			}
			request := &quotav1.ReleaseRequest{Lease: lease, Fence: fence, Items: items}
			once := requestIdentity[quotav1.ReleaseRequest]{
				set: func(r *quotav1.ReleaseRequest, id *quotav1.RequestId) { r.RequestId = id }, without: byNature,
			}
			if len(items) > 0 {
				once.without = ifNotAccepted // repeated, it releases the items again
			}
			return holderCall(a, cmd, request, once, func(ctx context.Context, n node, r *quotav1.ReleaseRequest) (*quotav1.ReleaseResponse, error) {
				return n.quota.Release(ctx, r)
			}, func(answer *quotav1.ReleaseResponse, table *output.Table) error {
				table.Add("returned", plainItemsText(answer.Returned))
				table.Add("lease ended", strconv.FormatBool(answer.Ended))
				return nil
			})
		},
	}
	f.register(cmd)
	return a.clientFlags(cmd)
}
