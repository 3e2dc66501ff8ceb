package live_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/client/providertest"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/local"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// examples is the folder of the fleet's program and its quotas: the test runs the files that users read.
const examples = "../../../../../client/examples"

// The provider's limits per minute in the example.
const (
	requestsLimit = 300
	tokensLimit   = 60_000
)

// pythonFleet is the plan of a run of the Python fleet: three nodes, whose leader is killed once, and a provider with its
// own count.
type pythonFleet struct {
	// period is the period of the limits; part is their divisor.
	period time.Duration
	part   int64
	// requests replaces the example's limit of requests; 0: unchanged.
	requests int64
	// latency is the mean time of a call. Agents make one call at a time, so that latency determines the demand of each
	// class.
	latency time.Duration
	// seconds is how long the agents call; kill is the time from their start to the leader's kill.
	seconds int
	kill    time.Duration
	// edit changes the example's quotas.
	edit *strings.Replacer
	// fault is a fault of the provider.
	fault *providertest.Fault
}

// pythonCall is an agent's output line for a call.
type pythonCall struct {
	Holder  string  `json:"holder"`
	Call    int     `json:"call"`
	Asked   float64 `json:"asked"` // Unix time, as Granted
	Granted float64 `json:"granted"`
	Tokens  int64   `json:"tokens"`
	Status  int     `json:"status"`
}

// class is the first word of the agent's name.
func (c pythonCall) class() string { return c.Holder[:strings.IndexByte(c.Holder, '-')] }

// pythonOutcome is the result of a run. Times count from the provider's start.
type pythonOutcome struct {
	fleet      pythonFleet
	calls      []pythonCall
	records    []providertest.Record
	born       time.Time
	start, end time.Duration
	// killed is the time of the leader's kill; back is when another node led.
	killed, back time.Duration
	// limited is the number of the provider's refusals that agents reported.
	limited int64
	// terms is the number of elections. lost is the time that the cluster's clock did not count. Both show that the machine
	// delayed the nodes.
	terms uint64
	lost  time.Duration
}

func (o *pythonOutcome) at(unix float64) time.Duration {
	return time.Duration(unix*float64(time.Second)) - time.Duration(o.born.UnixNano())
}

// run starts everything, lets the agents call, and stops everything.
func (f pythonFleet) run(ctx context.Context, dir string) (*pythonOutcome, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil, err
	}
	var printed bytes.Buffer
	o, err := f.measure(ctx, dir, func(cluster *local.Cluster, provider string) ([]*local.Child, func(), error) {
		processes := local.NewNursery(python, dir)
		agents, err := processes.Start("agents", func(line []byte) { fmt.Fprintf(&printed, "%s\n", line) },
			filepath.Join(examples, "fleet.py"),
			"--nodes", strings.Join(cluster.Servers(), ","), "--provider", provider,
			"--seconds", strconv.Itoa(f.seconds), "--largest", strconv.FormatInt(tokensLimit/f.part/50, 10))
		return []*local.Child{agents}, func() { processes.Close(time.Second) }, err
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "calls.jsonl"), printed.Bytes(), 0o600); err != nil {
		return nil, err
	}
	return o, o.read(printed.Bytes())
}

// measure starts nodes, a provider and callers, kills the leader, and stops everything once the callers have ended.
func (f pythonFleet) measure(
	ctx context.Context, dir string, begin func(cluster *local.Cluster, provider string) (callers []*local.Child, stop func(), err error),
) (*pythonOutcome, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	nodes := local.NewNursery(binary, dir)
	defer nodes.Close(5 * time.Second)
	cluster, err := f.startCluster(ctx, nodes, dir)
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	before, err := usage(ctx, cluster)
	if err != nil {
		return nil, err
	}
	o := &pythonOutcome{fleet: f, born: time.Now()}
	server, err := providertest.NewServer(providertest.Config{OpenAI: f.limits()})
	if err != nil {
		return nil, err
	}
	defer func() { _ = server.Close() }()
	if f.fault != nil {
		server.Inject(*f.fault)
	}
	callers, stop, err := begin(cluster, server.URL)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := f.killLeader(ctx, cluster, o); err != nil {
		return nil, err
	}
	for _, c := range callers {
		select {
		case <-c.Ended():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if ran := time.Since(o.born); ran < time.Duration(f.seconds)*time.Second {
			return nil, fmt.Errorf("%s ended after %v: see %s", c.Name(), ran, c.Log())
		}
	}
	o.records = server.Records()
	after, err := usage(ctx, cluster)
	if err != nil {
		return nil, err
	}
	for _, u := range after.Usage {
		o.limited += u.Limited
	}
	o.terms = after.Meta.Term - before.Meta.Term
	o.lost = time.Since(o.born) - (after.Meta.ClusterTime.AsDuration() - before.Meta.ClusterTime.AsDuration())
	return o, nil
}

// limits returns the provider's limits.
func (f pythonFleet) limits() providertest.OpenAI {
	return providertest.OpenAI{
		Requests: cmp.Or(f.requests, requestsLimit) / f.part, Tokens: tokensLimit / f.part, Per: f.period, Latency: f.latency,
	}
}

// startCluster starts nodes with the example's quotas, in up to three attempts: another process may take an address that
// was free.
func (f pythonFleet) startCluster(ctx context.Context, nursery *local.Nursery, dir string) (*local.Cluster, error) {
	text, err := os.ReadFile(filepath.Join(examples, "fleet.yaml"))
	if err != nil {
		return nil, err
	}
	file, err := quotafile.Parse("fleet.yaml", []byte(f.edit.Replace(string(text))))
	if err != nil {
		return nil, err
	}
	var failed error
	for try := range 3 {
		data := filepath.Join(dir, fmt.Sprintf("nodes-%d", try))
		if err := os.MkdirAll(data, 0o700); err != nil {
			return nil, err
		}
		cluster, err := local.NewCluster(nursery, data)
		if err != nil {
			return nil, err
		}
		for _, n := range cluster.Nodes {
			err = errors.Join(err, cluster.Start(n))
		}
		if err == nil {
			if err = cluster.Ready(ctx, file.Request()); err == nil {
				return cluster, nil
			}
		}
		cluster.Stop()
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// killLeader kills the leader with SIGKILL, and restarts it once another node leads.
func (f pythonFleet) killLeader(ctx context.Context, cluster *local.Cluster, o *pythonOutcome) error {
	timer := time.NewTimer(f.kill)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	victim, found := cluster.Leader(ctx)
	if !found {
		return context.Cause(ctx)
	}
	o.killed = time.Since(o.born)
	victim.Kill()
	if _, found = cluster.Leader(ctx); !found {
		return context.Cause(ctx)
	}
	o.back = time.Since(o.born)
	return cluster.Start(victim)
}

// usage reads the agents' usage, which comes with the cluster's term and time.
func usage(ctx context.Context, cluster *local.Cluster) (*quotav1.ListUsageResponse, error) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	quotad := quotav1connect.NewQuotaServiceClient(&http.Client{Transport: transport}, "http://"+cluster.Servers()[0])
	return quotad.ListUsage(ctx, &quotav1.ListUsageRequest{PageSize: 1000})
}

// read parses the agents' output.
func (o *pythonOutcome) read(printed []byte) error {
	for line := range bytes.Lines(printed) {
		var c pythonCall
		if err := json.Unmarshal(line, &c); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		o.calls = append(o.calls, c)
	}
	if len(o.calls) == 0 {
		return errors.New("the agents printed nothing")
	}
	first := slices.MinFunc(o.calls, func(a, b pythonCall) int { return cmp.Compare(a.Asked, b.Asked) })
	o.start = o.at(first.Asked)
	o.end = o.start + time.Duration(o.fleet.seconds)*time.Second
	return nil
}

// refused counts the provider's 429 answers, without those of faults.
func (o *pythonOutcome) refused() (n int) {
	for _, r := range o.records {
		if r.Verdict.Limited() {
			n++
		}
	}
	return n
}

// served counts, by class, the calls granted at or after a time and served by the provider.
func (o *pythonOutcome) served(from time.Duration) map[string]int {
	served := map[string]int{}
	for _, c := range o.calls {
		if c.Status == http.StatusOK && o.at(c.Granted) >= from {
			served[c.class()]++
		}
	}
	return served
}

// uncut removes the outage from a time.
func (o *pythonOutcome) uncut(at time.Duration) time.Duration {
	return at - max(min(at, o.back)-o.killed, 0)
}

// use is the average fill of the provider's sliding period, as a fraction of the limit, over all periods after the first
// one, without the outage. It is an average over time, not a sum over some minutes: the sum of a fleet that calls in bursts
// depends on when the bursts begin.
func (o *pythonOutcome) use(limit int64, weigh func(providertest.Record) int64) float64 {
	period := o.fleet.period
	from := o.start + period
	end := o.uncut(o.end)
	var sum float64
	for _, r := range o.records {
		if at := o.uncut(r.At); r.Verdict == providertest.Admitted && at >= from {
			sum += float64(weigh(r)) * max(min(at+period, end)-max(at, from+period), 0).Seconds()
		}
	}
	return sum / (float64(limit) * (end - from - period).Seconds())
}

// waits returns the sorted waits of a class's calls for their grants, from the second period on, without the outage.
func (o *pythonOutcome) waits(class string) (waits []time.Duration) {
	for _, c := range o.calls {
		asked, granted := o.at(c.Asked), o.at(c.Granted)
		if c.class() == class && asked >= o.start+o.fleet.period && (granted <= o.killed || asked >= o.back) {
			waits = append(waits, granted-asked)
		}
	}
	slices.Sort(waits)
	return waits
}

// lateness returns the sorted times from grants to arrivals at the provider: the delay that the machine adds.
func (o *pythonOutcome) lateness() (late []time.Duration) {
	arrived := map[string]time.Duration{}
	for _, r := range o.records {
		arrived[r.Call] = r.At
	}
	for _, c := range o.calls {
		if at, ok := arrived[fmt.Sprintf("%s/%d", c.Holder, c.Call)]; ok {
			late = append(late, at-o.at(c.Granted))
		}
	}
	slices.Sort(late)
	return late
}

// quantile returns the value at fraction p of sorted values; 0 if there are none.
func quantile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

func (o *pythonOutcome) log(t *testing.T, name string) {
	t.Helper()
	peak := providertest.Peak(o.records, o.fleet.period, providertest.Weights)
	t.Logf("%s: use %.2f %% of tokens, %.2f %% of requests; fullest period %d tokens; served %v; refused %d, reported %d",
		name, 100*o.use(tokensLimit/o.fleet.part, providertest.Weights), 100*o.use(requestsLimit/o.fleet.part, providertest.Each),
		peak.Sum, o.served(0), o.refused(), o.limited)
	t.Logf("%s: outage %v; elections %d, time lost %v",
		name, (o.back - o.killed).Round(time.Millisecond), o.terms, o.lost.Round(time.Millisecond))
	describe := func(what string, sorted []time.Duration) {
		t.Logf("%s: %s: %d, p50 %v, p90 %v, p99 %v, longest %v", name, what, len(sorted),
			quantile(sorted, 0.5).Round(time.Millisecond), quantile(sorted, 0.9).Round(time.Millisecond),
			quantile(sorted, 0.99).Round(time.Millisecond), quantile(sorted, 1).Round(time.Millisecond))
	}
	for _, class := range []string{"critical", "standard", "background"} {
		describe(class+" waits", o.waits(class))
	}
	describe("from grant to provider", o.lateness())
}

func needsPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("there is no python3 on this machine")
	}
}

// TestPythonFleet_MeetsNo429: nine Python agents run for a few seconds. No limit refuses a call, all classes are served,
// and calls continue after the leader's kill. One deliberate 429 is reported.
func TestPythonFleet_MeetsNo429(t *testing.T) {
	if testing.Short() {
		t.Skip("its leader is killed in real time")
	}
	needsPython(t)
	f := pythonFleet{
		period: 3 * time.Second, part: 5, latency: 300 * time.Millisecond, seconds: 9, kill: 4 * time.Second,
		edit: strings.NewReplacer(
			"limit: 300, per: 1m", "limit: 60, per: 3s", "limit: 60000, per: 1m", "limit: 12000, per: 3s",
			"settle: max", "settle: max\n    spend_by: 1s"),
		fault: &providertest.Fault{Holder: "standard-1", Status: http.StatusTooManyRequests, RetryAfter: time.Second},
	}
	o, err := f.run(t.Context(), t.ArtifactDir())
	if err != nil {
		t.Fatal(err)
	}
	o.log(t, "quick")
	if o.refused() != 0 {
		t.Errorf("the provider refused %d calls", o.refused())
	}
	for when, from := range map[string]time.Duration{"in all": 0, "after the leader was lost": o.back} {
		if served := o.served(from); served["critical"] == 0 || served["standard"] == 0 || served["background"] == 0 {
			t.Errorf("served %s: %v", when, served)
		}
	}
	if peak := providertest.Peak(o.records, f.period, providertest.Weights); peak.Sum > tokensLimit/f.part {
		t.Errorf("a period saw %d tokens", peak.Sum)
	}
	if o.limited == 0 {
		t.Error("the refusal was not reported")
	}
}

// TestPythonFleet_CriticalCallsDoNotWait: the same agents run for minutes, with and without policy at the same time, so
// that both have the same machine.
func TestPythonFleet_CriticalCallsDoNotWait(t *testing.T) {
	if testing.Short() {
		t.Skip("six minutes of real time")
	}
	needsPython(t)
	const seconds, kill = 370, 200 * time.Second
	shared := pythonFleet{period: time.Minute, part: 1, latency: 2 * time.Second, seconds: seconds, kill: kill, edit: strings.NewReplacer()}
	inert := shared
	inert.edit = strings.NewReplacer("policy: {profile: fleet}", "")
	var outcomes [2]*pythonOutcome
	var failed [2]error
	var running sync.WaitGroup
	for i, f := range []pythonFleet{shared, inert} {
		dir := filepath.Join(t.ArtifactDir(), strconv.Itoa(i))
		running.Go(func() { outcomes[i], failed[i] = f.run(t.Context(), dir) })
	}
	running.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		t.Fatal(err)
	}
	policy, without := outcomes[0], outcomes[1]
	policy.log(t, "with policy")
	without.log(t, "without")
	if policy.refused() != 0 || without.refused() != 0 {
		t.Errorf("refused %d, without policy %d", policy.refused(), without.refused())
	}
	if waits := policy.waits("critical"); len(waits) < 100 || quantile(waits, 0.99) > 3*time.Second {
		t.Errorf("of %d critical calls, a hundredth waited longer than %v", len(waits), quantile(waits, 0.99))
	}
	use, most := policy.use(tokensLimit, providertest.Weights), without.use(tokensLimit, providertest.Weights)
	if use < 0.94 || use < 0.97*most {
		t.Errorf("use %.2f %% of usable, without policy %.2f %%", 100*use, 100*most)
	}
}
