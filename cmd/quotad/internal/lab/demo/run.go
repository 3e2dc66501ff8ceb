package demo

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/client/providertest"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/local"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/cmd/quotad/internal/view"
	"github.com/quotad/quotad/raftnode/logstore"
)

//go:embed quotas.yaml
var quotasYAML []byte

// options are the user's settings.
type options struct {
	// Fleet is both, own or governed.
	Fleet    string
	Duration time.Duration
	Dir      string
	// Kill: the leader is killed midway.
	Kill bool
	Seed uint64
	// Node is a folder with Node's packages for the two APIs; empty: no agent uses them.
	Node string
	// Binary is the binary to start; empty: this program.
	Binary string
}

func (o options) modes() []mode {
	switch o.Fleet {
	case string(own):
		return []mode{own}
	case string(governed):
		return []mode{governed}
	}
	return []mode{own, governed}
}

// governs reports whether the run needs a cluster.
func (o options) governs() bool { return o.Fleet != string(own) }

// demo is one run.
type demo struct {
	options options
	screen  *view.Screen
	nursery *local.Nursery
	cluster *local.Cluster // nil: no fleet needs one
	referee *referee
	agents  map[mode][]*local.Child
	tallies map[mode]*tally
	began   time.Time
	report  report
}

// errNotKept is the failure of a run that broke a promise.
var errNotKept = errors.New("the fleet through quotad did not stay within the limits, or did not work")

// run runs the whole demo. It returns errNotKept, wrapped, if quotad broke a promise.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	if err := logstore.Supported(); err != nil {
		return err
	}
	if o.Binary == "" {
		if o.Binary, err = os.Executable(); err != nil {
			return err
		}
	}
	folder, err := openFolder(o.Dir)
	if err != nil {
		return err
	}
	defer folder.close()
	o.Dir = folder.path
	// The demo ends even if a part hangs.
	ctx, cancel := context.WithTimeoutCause(ctx, o.Duration+2*local.StartTimeout, errors.New("the demo hangs"))
	defer cancel()
	d := &demo{
		options: o, screen: view.NewScreen(out), agents: make(map[mode][]*local.Child), tallies: make(map[mode]*tally), began: time.Now(),
	}
	d.nursery = local.NewNursery(o.Binary, filepath.Join(o.Dir, "logs"))
	defer d.nursery.Close(5 * time.Second)
	defer d.screen.End()
	fmt.Fprintf(out, "Nine agents share an API key that allows %d requests and %d completions (%d tokens) an hour. An hour lasts %s here.\n"+
		"Data and logs: %s   Seed: %d\n\n", requestLimit, completionLimit, tokenLimit, hour, o.Dir, o.Seed)

	fmt.Fprint(out, o.tooShort())
	if err := d.start(ctx); err != nil {
		return err
	}
	if err := d.play(ctx); err != nil {
		return err
	}
	return d.finish(ctx, out)
}

// tooShort says that a run is too short to compare its fleets; empty: it is long enough, or there is nothing to compare. A
// limit has an effect once its hour is used up, and the leader is killed in the second hour.
func (o options) tooShort() string {
	if o.Duration >= hour+hour/2 || len(o.modes()) < 2 {
		return ""
	}
	return fmt.Sprintf("--duration %s is too short to compare the fleets: an hour of the provider lasts %s, "+
		"and a comparison needs one and a half.\n",
		o.Duration, hour)
}

// start starts the cluster, the provider and the agents.
func (d *demo) start(ctx context.Context) error {
	if d.options.governs() {
		var err error
		if d.cluster, err = local.NewCluster(d.nursery, d.options.Dir); err != nil {
			return err
		}
		for _, n := range d.cluster.Nodes {
			if err := d.cluster.Start(n); err != nil {
				return err
			}
		}
		file, err := quotafile.Parse("quotas.yaml", quotasYAML)
		if err != nil {
			return err
		}
		if err := d.cluster.Ready(ctx, file.Request()); err != nil {
			return err
		}
		d.screen.Say(0, "three nodes run (%s), the quotas are applied", strings.Join(d.cluster.Servers(), ", "))
	}
	url, err := d.startProvider(ctx)
	if err != nil {
		return err
	}
	d.screen.Say(0, "the provider listens at %s", url)
	foreigners, gateway, err := d.foreigners(ctx, url)
	if err != nil {
		return err
	}
	d.began = time.Now()
	d.report = report{Seed: d.options.Seed, Scale: scale, Began: d.began}
	for _, m := range d.options.modes() {
		d.tallies[m] = newTally()
		for _, r := range roles {
			args := []string{
				"demo", "agent", "--role", r.Name, "--mode", string(m), "--provider", url, "--seed", fmt.Sprint(d.options.Seed),
			}
			if m == governed {
				args = append(args, "--servers", strings.Join(d.cluster.Servers(), ","))
				if by := foreigners[r.Name]; by != "" {
					args = append(args, "--speaks", string(by), "--gateway", gateway, "--node", d.options.Node)
				}
			}
			c, err := d.nursery.Start(string(m)+"-"+r.Name, func(line []byte) { d.tallies[m].hear(r.Name, line) }, args...)
			if err != nil {
				return err
			}
			d.agents[m] = append(d.agents[m], c)
		}
	}
	d.screen.Say(0, "nine agents begin at once in each fleet: %s", fleetNames(d.options.modes()))
	return nil
}

// foreigners returns the governed agents that use another language, and the URL of their gateway.
func (d *demo) foreigners(ctx context.Context, provider string) (by map[string]language, gateway string, err error) {
	if by = speaks(d.options.Node); d.cluster == nil || len(by) == 0 {
		return nil, "", nil
	}
	names := slices.Sorted(maps.Keys(by))
	if gateway, err = d.startGateway(ctx, provider, names); err != nil {
		return nil, "", err
	}
	for i, name := range names {
		names[i] = "the " + name + " by " + string(by[name])
	}
	d.screen.Say(0, "a gateway serves at %s; through it call %s", gateway, strings.Join(names, ", "))
	return by, gateway, nil
}

func fleetNames(modes []mode) string {
	var names []string
	for _, m := range modes {
		names = append(names, m.title())
	}
	return strings.Join(names, " and ")
}

func (d *demo) startProvider(ctx context.Context) (string, error) {
	lines := make(chan []byte, 1)
	var once sync.Once
	c, err := d.nursery.Start("provider", func(line []byte) {
		once.Do(func() { lines <- append([]byte(nil), line...) })
	}, "demo", "provider", "--seed", fmt.Sprint(d.options.Seed))
	if err != nil {
		return "", err
	}
	var ready providerReady
	select {
	case line := <-lines:
		if err := json.Unmarshal(line, &ready); err != nil {
			return "", fmt.Errorf("the provider said %q: %w", line, err)
		}
	case <-c.Ended():
		return "", fmt.Errorf("the provider ended: see %s", c.Log())
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	d.referee = newReferee(ready.URL)
	return ready.URL, nil
}

// play lets the fleets work for the duration, and kills and restarts the leader meanwhile.
func (d *demo) play(ctx context.Context) error {
	playing, end := context.WithDeadline(ctx, d.began.Add(d.options.Duration))
	defer end()
	var accident sync.WaitGroup
	var trouble error
	if d.options.Kill && d.cluster != nil {
		accident.Go(func() { trouble = d.accident(playing) })
	}
	poll := time.NewTicker(500 * time.Millisecond)
	defer poll.Stop()
	for playing.Err() == nil {
		if err := d.revive(); err != nil {
			end()
			accident.Wait()
			return err
		}
		d.show(d.watch(playing), time.Since(d.began))
		select {
		case <-poll.C:
		case <-playing.Done():
		}
	}
	accident.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return trouble
}

// show draws a scene.
func (d *demo) show(s scene, passed time.Duration) {
	d.screen.Show(passed, func(notes []string) []string { return d.frame(s, passed, notes) }, func() []string { return d.plain(s, passed) })
}

// revive restarts nodes that have ended unexpectedly.
func (d *demo) revive() error {
	if d.cluster == nil {
		return nil
	}
	revived, err := d.cluster.Revive()
	for _, n := range revived {
		d.report.Revived++
		d.screen.Say(time.Since(d.began), "%s had ended by itself, and is started again: its log says why", n.ID)
	}
	return err
}

// accident kills the leader after 11/20 of the run. With the default duration a new hour of the provider has just begun,
// and calls flow again. It restarts the node a tenth of the run later.
func (d *demo) accident(ctx context.Context) error {
	half := d.began.Add(d.options.Duration * 11 / 20)
	if !pause(ctx, time.Until(half)) {
		return nil
	}
	victim, found := d.cluster.Leader(ctx)
	if !found {
		return errors.New("no node leads: none can be killed")
	}
	victim.Kill()
	killed := time.Now()
	d.report.Killed = victim.ID
	d.screen.Say(time.Since(d.began), "%s, the leader, is killed (SIGKILL)", victim.ID)
	var election sync.WaitGroup
	defer election.Wait()
	election.Go(func() {
		if heir, found := d.cluster.Leader(ctx); found {
			d.report.Failover = time.Since(killed)
			d.screen.Say(time.Since(d.began), "%s leads, %s after the kill", heir.ID, short(d.report.Failover))
		}
	})
	if !pause(ctx, time.Until(killed.Add(d.options.Duration/10))) {
		return nil
	}
	if err := d.cluster.Start(victim); err != nil {
		return err
	}
	d.report.Restarted = true
	d.screen.Say(time.Since(d.began), "%s is started again", victim.ID)
	return nil
}

// finish stops everything and reports the result.
func (d *demo) finish(ctx context.Context, out io.Writer) error {
	d.screen.End()
	d.report.Duration = time.Since(d.began)
	died := d.died()
	var agents []*local.Child
	for _, fleet := range d.agents {
		agents = append(agents, fleet...)
	}
	local.Stop(5*time.Second, agents...)
	records, err := d.referee.records(ctx)
	if err != nil {
		return fmt.Errorf("the provider's records are missing: %w", err)
	}
	if d.cluster != nil {
		d.cluster.Stop()
	}
	if err := writeRecords(filepath.Join(d.options.Dir, "provider-requests.jsonl"), records); err != nil {
		return err
	}
	for _, m := range d.options.modes() {
		d.report.Fleets = append(d.report.Fleets, newFleetReport(m, d.report.Duration, records, d.tallies[m].all()))
	}
	d.report.judge(d.options.Kill)
	d.report.Reasons = append(d.report.Reasons, died...)
	d.report.OK = len(d.report.Reasons) == 0
	path := filepath.Join(d.options.Dir, "report.json")
	if err := d.report.write(path); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\n%s%s\nReport: %s\n", d.report.table(), d.options.tooShort(), d.report.verdict(), path)
	if !d.report.OK {
		return fmt.Errorf("%w: %s", errNotKept, d.report.Reasons[0])
	}
	return nil
}

// died names the agents that ended unexpectedly.
func (d *demo) died() []string {
	var names []string
	for _, fleet := range d.agents {
		for _, c := range fleet {
			if !c.Alive() {
				names = append(names, fmt.Sprintf("%s ended by itself: see %s", c.Name(), c.Log()))
			}
		}
	}
	return names
}

func writeRecords(path string, records []providertest.Record) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(providertest.WriteRecords(file, records), file.Close())
}
