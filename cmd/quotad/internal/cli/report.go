package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

// reportFlags are the options of report.
type reportFlags struct {
	quota, cause, resetAfter, retryAfter string
	limit, remaining                     string
	op                                   uint64
}

func (a *App) reportCommand() *cobra.Command {
	var of leaseFlags
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "report --quota QUOTA --cause CAUSE --lease ID --fence FENCE",
		Short: "Report what a provider answered, so that one refusal protects all holders",
		Long: `Report what a provider answered to a call of a lease. A limit closes the quota for all holders until the provider's time; what
is left and when the window resets corrects the count. Name only what the provider said.

The causes:

  ok           an ordinary answer; its limit, remaining and reset count
  saturated    too fast or too many at once; over within seconds (most 429)
  exhausted    used up until its reset
  account      the whole account is limited
  plan         not in the plan, or not paid: waiting does not help
  overloaded   the provider itself is overloaded; closes nothing
  not-a-limit  no limit at all

Below "quotad run" the lease is that of the command. With tokens it needs the verb "report".`,
		Example: `  quotad report --quota github/core --cause exhausted --remaining 0 --reset-after 12m --lease 42 --fence 281474976710698
  quotad report --quota openai/tokens --cause saturated --retry-after 20s`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			lease, fence, err := a.readLease(cmd, &of)
			if err != nil {
				return err
			}
			signal, err := f.signal(cmd)
			if err != nil {
				return err
			}
			return a.report(cmd, &quotav1.ReportRequest{Lease: lease, Fence: fence, Op: f.op, Signals: []*quotav1.Signal{signal}})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.quota, "quota", "", "quota that the answer is about: an item of the lease, or an ancestor of one")
	flags.StringVar(&f.cause, "cause", "", "kind of answer: "+strings.Join(causeWords(), ", "))
	flags.StringVar(&f.limit, "limit", "", "limit that the provider named")
	flags.StringVar(&f.remaining, "remaining", "", "what the provider said is left")
	flags.StringVar(&f.resetAfter, "reset-after", "", "time until the window resets, from now")
	flags.StringVar(&f.retryAfter, "retry-after", "", "time that the provider asked to wait")
	of.register(cmd)
	flags.Uint64Var(&f.op, "op", 1, "number of the operation that covered the call")
	_ = cmd.RegisterFlagCompletionFunc("cause", cobra.FixedCompletions(causeWords(), cobra.ShellCompDirectiveNoFileComp))
	return a.clientFlags(cmd)
}

func (f *reportFlags) signal(cmd *cobra.Command) (*quotav1.Signal, error) {
	if f.quota == "" || f.cause == "" {
		return nil, usagef(cmd, "", "--quota and --cause are both needed")
	}
	known := slices.Index(causeWords(), f.cause)
	if known < 0 {
		return nil, usagef(cmd, strings.Join(causeWords(), ", "), "unknown --cause %q", f.cause)
	}
	signal := &quotav1.Signal{Quota: f.quota, Cause: quotav1.Cause(known + 1)} //nolint:gosec // a position in a short list
	for _, count := range []struct {
		flag, text string
		to         **int64
	}{{"limit", f.limit, &signal.Limit}, {"remaining", f.remaining, &signal.Remaining}} {
		if count.text == "" {
			continue
		}
		value, err := strconv.ParseInt(count.text, 10, 64)
		if err != nil || value < 0 || value > quotafile.MaxAmount {
			return nil, usagef(cmd, "", "--%s %q is not a number of 0 to %d", count.flag, count.text, int64(quotafile.MaxAmount))
		}
		*count.to = &value
	}
	var err error
	if signal.ResetAfter, err = durationFlag(cmd, "reset-after", f.resetAfter); err != nil {
		return nil, err
	}
	signal.RetryAfter, err = durationFlag(cmd, "retry-after", f.retryAfter)
	return signal, err
}

func (a *App) report(cmd *cobra.Command, request *quotav1.ReportRequest) error {
	once := requestIdentity[quotav1.ReportRequest]{
		set: func(r *quotav1.ReportRequest, id *quotav1.RequestId) { r.RequestId = id }, without: ifNotAccepted,
	}
	return holderCall(a, cmd, request, once, func(ctx context.Context, n node, r *quotav1.ReportRequest) (*quotav1.ReportResponse, error) {
		return n.quota.Report(ctx, r)
	}, func(answer *quotav1.ReportResponse, table *output.Table) error {
		table.Header = []string{"QUOTA", "CLOSED FOR", "IN A ROW", "RESET LEARNED", "LOWERED TO"}
		for _, q := range answer.Quotas {
			lowered := output.Dash
			if q.CappedTo != nil {
				lowered = output.Int(*q.CappedTo)
			}
			table.Add(q.Quota, output.Duration(q.CooldownLeft), output.Int(q.Attempt), strconv.FormatBool(q.ResetLearned), lowered)
		}
		return nil
	})
}

// causeWords are the causes as users type them, in the order of their numbers from 1.
func causeWords() []string {
	words := make([]string, 0, len(quotav1.Cause_name))
	for number := int32(1); quotav1.Cause_name[number] != ""; number++ {
		words = append(words, strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(quotav1.Cause_name[number], "CAUSE_")), "_", "-"))
	}
	return words
}
