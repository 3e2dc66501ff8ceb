package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
	"github.com/quotad/quotad/jepsen/canary"
	"github.com/quotad/quotad/jepsen/hostile"
	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// The nodes and the other callers have one processor. The hostile caller and a program that only spins have the other.
const (
	servedOn  = 0
	hostileOn = 1
)

// In addition to the hostile caller there are others, each with a token and a client of its own. Each has atOnce concurrent
// calls and waits for their answers.
const (
	others = 8
	atOnce = 8
)

// hostileRun is the plan of a measurement.
type hostileRun struct {
	quotad, only, profiles, memory string
	rounds, bombers                int
	duration, warm                 time.Duration
}

func hostileCommand() *cobra.Command {
	run := &hostileRun{}
	cmd := &cobra.Command{
		Use:   "hostile",
		Short: "Measure the effect of a hostile caller on others",
		Long: `Run three nodes and eight callers, each with a token and eight calls in flight, on one processor. On the other processor a program
spins at the lowest priority. In every second phase a hostile caller with a token takes as much as it can of everything at every
node. Operator commands run all the time, at each node in turn. Fails if one of them fails, or where a goal is missed: others
keep 80 % of their rate, their p99 is at most twice as long, no operator command takes more than 1 s, and no node's memory goes above
its mark.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	cmd.Flags().StringVar(&run.quotad, "quotad", "bin/quotad", "quotad's binary")
	cmd.Flags().IntVar(&run.rounds, "rounds", 3, "how many rounds")
	cmd.Flags().DurationVar(&run.duration, "duration", 10*time.Second, "how long each phase is measured")
	cmd.Flags().DurationVar(&run.warm, "warm", 3*time.Second, "how long each phase runs before")
	cmd.Flags().StringVar(&run.only, "only", "", "limit the hostile caller to one attack: fill, wait, watch, bomb, silent or slow")
	cmd.Flags().StringVar(&run.profiles, "profiles", "", "write a profile of each node's processor time in each phase into this folder")
	cmd.Flags().IntVar(&run.bombers, "bombers", 1, "how many bombs the hostile caller sends each node at once")
	cmd.Flags().StringVar(&run.memory, "memory-limit", "2GiB", "the nodes' memory limit: what full budgets need")
	var length time.Duration
	role := &cobra.Command{Use: "role NAME", Hidden: true, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return play(cmd.Context(), args[0], run.bombers, length, run.warm, cmd.OutOrStdout())
	}}
	role.Flags().DurationVar(&length, "length", time.Second, "how long")
	role.Flags().DurationVar(&run.warm, "warm", time.Second, "how long before")
	role.Flags().IntVar(&run.bombers, "bombers", 1, "how many bombs at once")
	cmd.AddCommand(role)
	return cmd
}

// phase is the result of one phase.
type phase struct {
	// PerSecond, P50 and P99 (milliseconds) are those of the other callers.
	PerSecond, P50, P99 float64
	// Operator is the longest operator command, in milliseconds. Memory is the highest use of a node, in MiB. MemoryPart is
	// the highest use as a fraction of the node's mark.
	Operator, Memory, MemoryPart float64 `json:",omitempty"`
	// Commands is the number of operator commands; Failed are the errors of failed ones.
	Commands int     `json:",omitempty"`
	Failed   []error `json:"-"`
	// Processor is the processor time of all nodes, in percent of one processor.
	Processor float64 `json:",omitempty"`
	// Attack describes the hostile caller's calls.
	Attack string `json:",omitempty"`
}

func (r *hostileRun) run(ctx context.Context, out io.Writer) error {
	if runtime.NumCPU() < 2 {
		return errors.New("two processors are needed, one for the nodes and one for the hostile caller")
	}
	measured := map[string][]phase{}
	for round := range r.rounds {
		for _, role := range []string{"rest", "attack"} {
			_, _ = fmt.Fprintf(os.Stderr, "round %d of %d: %s", round+1, r.rounds, role)
			p, err := r.phase(ctx, round, role)
			if err != nil {
				return fmt.Errorf("%s: %w", role, err)
			}
			_, _ = fmt.Fprintf(os.Stderr, ": %.0f decisions/s, p99 %.1f ms, nodes %.0f %%\n", p.PerSecond, p.P99, p.Processor)
			measured[role] = append(measured[role], p)
		}
	}
	return errors.Join(tabulate(out, measured), judgeHostile(out, measured))
}

// hostileColumns are the columns of the table.
var hostileColumns = []func(phase) float64{
	func(p phase) float64 { return p.PerSecond }, func(p phase) float64 { return p.P50 }, func(p phase) float64 { return p.P99 },
	func(p phase) float64 { return p.Operator }, func(p phase) float64 { return p.Memory },
	func(p phase) float64 { return 100 * p.MemoryPart }, func(p phase) float64 { return p.Processor },
}

// sortedOf returns a figure of the phases in ascending order, and its median.
func sortedOf(phases []phase, get func(phase) float64) (all []float64, median float64) {
	for _, p := range phases {
		all = append(all, get(p))
	}
	slices.Sort(all)
	return all, all[len(all)/2]
}

// tabulate prints medians, and for each the range of the rounds.
func tabulate(out io.Writer, measured map[string][]phase) error {
	rows := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(rows, "PHASE\tDECISIONS/S\tP50 ms\tP99 ms\tOPERATOR, LONGEST ms\t"+
		"MEMORY OF A NODE MiB\tOF ITS MARK %\tPROCESSOR OF THE NODES %\tATTACK")
	medians := map[string][]float64{}
	for _, role := range []string{"rest", "attack"} {
		row := []string{role}
		for _, get := range hostileColumns {
			all, median := sortedOf(measured[role], get)
			medians[role] = append(medians[role], median)
			row = append(row, fmt.Sprintf("%.1f (%.1f to %.1f)", median, all[0], all[len(all)-1]))
		}
		last := measured[role][len(measured[role])-1]
		_, _ = fmt.Fprintln(rows, strings.Join(append(row, last.Attack), "\t"))
	}
	_, _ = fmt.Fprintf(rows, "ratio\t%.2f\t%.2f\t%.2f\t\t\t\t\t\n", medians["attack"][0]/medians["rest"][0],
		medians["attack"][1]/medians["rest"][1], medians["attack"][2]/medians["rest"][2])
	return rows.Flush()
}

// phase starts a new cluster and measures the others during a role.
func (r *hostileRun) phase(ctx context.Context, round int, role string) (_ phase, err error) {
	dir, err := os.MkdirTemp(".", "bench-hostile-")
	if err != nil {
		return phase{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := &guarded{dir: dir, only: r.only, memory: r.memory, bombers: r.bombers}
	if err := c.start(ctx, r.quotad); err != nil {
		return phase{}, err
	}
	defer c.processes.Stop()
	ctx, cancel := context.WithTimeout(ctx, 2*(r.warm+r.duration)+time.Minute)
	defer cancel()
	whole := r.warm + r.duration
	// An idle processor changes the speed of a virtual machine's other processors, so this one never idles.
	spun, err := c.role(ctx, hostileOn, "spin", "", whole+2*time.Second, 0)
	if err != nil {
		return phase{}, err
	}
	defer func() {
		_, failed := spun()
		err = errors.Join(err, failed)
	}()
	beside, err := c.role(ctx, hostileOn, role, c.tokens["hostile"], whole+2*time.Second, 0)
	if err != nil {
		return phase{}, err
	}
	served, err := c.role(ctx, servedOn, "others", c.tokens["others"], r.duration, r.warm)
	if err != nil {
		return phase{}, err
	}
	profiled := c.profile(ctx, r.profiles, fmt.Sprint(role, "-", round+1), r.warm, r.duration)
	used := c.used()
	p := c.operate(ctx, whole)
	p.Processor = 100 * (c.used() - used).Seconds() / whole.Seconds()
	said, err := served()
	if err := errors.Join(err, profiled(), c.remember(ctx, &p)); err != nil {
		return phase{}, err
	}
	if err := json.Unmarshal(said, &p); err != nil { // fields that the answer omits stay unchanged
		return phase{}, err
	}
	said, err = beside()
	p.Attack = strings.TrimSpace(string(said))
	return p, err
}

// guarded is a cluster that requires tokens.
type guarded struct {
	dir, only, memory string
	bombers           int
	// addresses are those of the nodes' API ports, ops those of the operators' ports.
	addresses, ops []string
	tokens         map[string]string
	processes      bench.Processes
}

func (c *guarded) start(ctx context.Context, quotad string) (err error) {
	free, err := loopback.Free(9)
	if err != nil {
		return err
	}
	c.addresses, c.ops, c.tokens = free[:3], free[6:], map[string]string{}
	operator, tokens, err := canary.New(ctx, quotad, c.dir)
	if err != nil {
		return err
	}
	c.tokens["operator"] = operator
	var secrets []string
	for i := range others {
		secret, err := canary.Another(ctx, quotad, c.dir, fmt.Sprint("other-", i), "use,report,read")
		if err != nil {
			return err
		}
		secrets = append(secrets, secret)
	}
	c.tokens["others"] = strings.Join(secrets, ",")
	if c.tokens["hostile"], err = canary.Another(ctx, quotad, c.dir, "hostile", "use,report,read"); err != nil {
		return err
	}
	var peers []string
	for i := range c.addresses {
		peers = append(peers, fmt.Sprintf("n%d=%s/%s", i+1, free[3+i], free[i]))
	}
	for i := range c.addresses {
		name := fmt.Sprintf("n%d", i+1)
		err = onProcessor(servedOn, func() error {
			args := []string{
				"serve", "--node-id", name, "--data-dir", filepath.Join(c.dir, name), "--api-listen", free[i], "--raft-listen", free[3+i],
				"--peers", strings.Join(peers, ","), "--tokens-file", tokens, "--ops-listen", c.ops[i], "--ops-pprof",
			}
			if c.memory != "" {
				args = append(args, "--memory-limit", c.memory)
			}
			return c.processes.Start(c.dir, name, quotad, args...)
		})
		if err != nil {
			return err
		}
	}
	return bench.Retry(ctx, func(ctx context.Context) error {
		_, err := c.admin(0).ApplyQuotas(ctx, &quotav1.ApplyQuotasRequest{Quotas: append(hostile.Quotas(), &quotav1.Quota{
			Name: bench.QuotaName(-1), Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: 1 << 50, Per: durationpb.New(time.Minute)}},
		})})
		return err
	})
}

// admin returns a client of the operator for a node, by its number.
func (c *guarded) admin(node int) quotav1connect.AdminServiceClient {
	return quotav1connect.NewAdminServiceClient(c.operator(), "http://"+c.addresses[node])
}

// operator is an HTTP client that sends the operator's token.
func (c *guarded) operator() *http.Client {
	return &http.Client{Transport: &canary.Carry{Secret: c.tokens["operator"], Next: http.DefaultTransport}}
}

// role starts this program again, on one processor, to play a role. wait returns its output.
func (c *guarded) role(
	ctx context.Context, processor int, name, token string, length, warm time.Duration,
) (wait func() ([]byte, error), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "hostile", "role", name, "--length", length.String(), "--warm", warm.String(),
		"--bombers", strconv.Itoa(c.bombers))
	cmd.Env = append(os.Environ(), "BENCH_NODES="+strings.Join(c.addresses, ","), "BENCH_TOKEN="+token, "BENCH_ONLY="+c.only)
	cmd.Stderr = os.Stderr
	said, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := onProcessor(processor, cmd.Start); err != nil {
		return nil, err
	}
	return func() ([]byte, error) {
		all, err := io.ReadAll(said)
		return all, errors.Join(err, cmd.Wait())
	}, nil
}

// onProcessor starts a process that stays on one processor, with all its threads.
func onProcessor(number int, start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	one.Set(number)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	return errors.Join(start(), unix.SchedSetaffinity(0, &before))
}

// operate runs an operator command five times a second, at each node in turn, and at each node at least once.
func (c *guarded) operate(ctx context.Context, length time.Duration) (p phase) {
	goesOn := func(began time.Time) bool { return time.Since(began) < length || p.Commands < len(c.addresses) }
	for began := time.Now(); goesOn(began) && ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		node := p.Commands % len(c.addresses)
		at := time.Now()
		_, err := c.admin(node).OverrideQuota(ctx, &quotav1.OverrideQuotaRequest{
			Name: bench.QuotaName(-1), Limit: new(int64(1 << 40)), Duration: durationpb.New(time.Minute),
		})
		p.Operator = max(p.Operator, float64(time.Since(at).Microseconds())/1000)
		p.Commands++
		if err != nil {
			p.Failed = append(p.Failed, fmt.Errorf("operator command at node %d: %w", node+1, err))
		}
	}
	return p
}

// remember records the nodes' peak memory, and its highest fraction of a node's mark.
func (c *guarded) remember(ctx context.Context, p *phase) error {
	for i, pid := range c.processes.PIDs() {
		mark, err := c.memoryMark(ctx, i)
		if err != nil {
			return fmt.Errorf("memory mark of node %d: %w", i+1, err)
		}
		had := peakMiB(pid)
		if had == 0 {
			return fmt.Errorf("node %d has ended, or its memory is unknown", i+1)
		}
		p.Memory, p.MemoryPart = max(p.Memory, had), max(p.MemoryPart, had*(1<<20)/mark)
	}
	return nil
}

// memoryMark returns the memory use, in bytes, above which a node refuses new grants.
func (c *guarded) memoryMark(ctx context.Context, node int) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.ops[node]+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := c.operator().Do(request)
	if err != nil {
		return 0, err
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return 0, err
	}
	_, after, found := bytes.Cut(text, []byte("\nquotad_memory_mark_bytes "))
	var mark float64
	if _, err := fmt.Sscan(string(after), &mark); !found || err != nil || mark <= 0 {
		return 0, fmt.Errorf("%s names none: set --memory-limit", response.Status)
	}
	return mark, nil
}

// used is the processor time of the nodes so far.
func (c *guarded) used() (all time.Duration) {
	for _, pid := range c.processes.PIDs() {
		all += processorTime(pid)
	}
	return all
}

// processorTime is the processor time of a process so far.
func processorTime(pid int) time.Duration {
	const user, perTick = 11, 10 * time.Millisecond // position after the name, which is in brackets and may contain spaces
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < user+2 {
		return 0
	}
	inUser, _ := strconv.ParseInt(fields[user], 10, 64)
	inSystem, _ := strconv.ParseInt(fields[user+1], 10, 64)
	return time.Duration(inUser+inSystem) * perTick
}

// profile makes each node profile its processor time after warm, and writes the profiles to a folder; wait waits for them.
func (c *guarded) profile(ctx context.Context, dir, name string, warm, length time.Duration) (wait func() error) {
	if dir == "" {
		return func() error { return nil }
	}
	failed := make(chan error, len(c.ops))
	for i, address := range c.ops {
		go func() {
			time.Sleep(warm)
			failed <- c.profileOne(ctx, address, filepath.Join(dir, fmt.Sprintf("%s-n%d.pprof", name, i+1)), length)
		}()
	}
	return func() (err error) {
		for range c.ops {
			err = errors.Join(err, <-failed)
		}
		return err
	}
}

func (c *guarded) profileOne(ctx context.Context, address, file string, length time.Duration) (err error) {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", address, max(1, int(length.Seconds())))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := c.operator().Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("a profile of %s: %s", address, response.Status)
	}
	into, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(into, response.Body)
	return errors.Join(err, into.Close())
}

// peakMiB is the peak memory of a process.
func peakMiB(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, found := bytes.Cut(text, []byte("VmHWM:"))
	if !found {
		return 0
	}
	var kibibytes float64
	_, _ = fmt.Sscan(string(after), &kibibytes)
	return kibibytes / 1024
}

// play plays a role.
func play(ctx context.Context, name string, bombers int, length, warm time.Duration, out io.Writer) error {
	nodes, token := strings.Split(os.Getenv("BENCH_NODES"), ","), os.Getenv("BENCH_TOKEN")
	switch name {
	case "rest":
		return nil
	case "spin":
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 19); err != nil {
			return err
		}
		for began := time.Now(); time.Since(began) < length; {
		}
		return nil
	case "attack":
		ctx, cancel := context.WithTimeout(ctx, length)
		defer cancel()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var calls, refused int64
		for i, address := range nodes {
			caller := &hostile.Caller{
				Name: strconv.Itoa(i), Address: address, Token: token, Dial: new(net.Dialer).DialContext, Only: strings.Fields(os.Getenv("BENCH_ONLY")),
				Bombers: bombers,
			}
			wg.Go(func() {
				made, denied := caller.Attack(ctx)
				mu.Lock()
				defer mu.Unlock()
				calls, refused = calls+made, refused+denied
			})
		}
		wg.Wait()
		_, err := fmt.Fprintf(out, "%.0f calls/s, %.0f/s refused", float64(calls)/length.Seconds(), float64(refused)/length.Seconds())
		return err
	case "others":
		return playOthers(ctx, nodes, strings.Split(token, ","), length, warm, out)
	}
	return fmt.Errorf("there is no role %q", name)
}

// playOthers calls as the benchmark of 64 callers and one quota does, with a client for each token, and writes the result.
func playOthers(ctx context.Context, nodes, tokens []string, length, warm time.Duration, out io.Writer) error {
	latency := hdrhistogram.New(1, 60_000_000, 3)
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	from := time.Now().Add(warm)
	until := from.Add(length)
	work := func(c *client.Client) {
		for time.Now().Before(until) && ctx.Err() == nil {
			at := time.Now()
			_, err := c.Reserve(ctx, client.ReserveRequest{
				Items: []client.Item{{Quota: bench.QuotaName(-1), Amount: 1}}, Consume: true, TTL: time.Second,
			})
			took := time.Since(at)
			mu.Lock()
			switch {
			case err != nil:
				failed = err
			case at.After(from):
				_ = latency.RecordValue(max(took.Microseconds(), 1))
			}
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}
	for i, token := range tokens {
		c, err := client.New(nodes, client.WithHolder(fmt.Sprint("other-", i)), client.WithToken(token))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		for range atOnce {
			wg.Go(func() { work(c) })
		}
	}
	wg.Wait()
	if failed != nil {
		return fmt.Errorf("a call of others: %w", failed)
	}
	return json.NewEncoder(out).Encode(phase{
		PerSecond: float64(latency.TotalCount()) / length.Seconds(),
		P50:       float64(latency.ValueAtQuantile(50)) / 1000, P99: float64(latency.ValueAtQuantile(99)) / 1000,
	})
}
