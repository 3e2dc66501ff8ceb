package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/quotad/quotad/raftnode/logstore"
)

// Plan says what to measure, and for how long.
type Plan struct {
	// Systems run alternately in each round.
	Systems []System
	// Rounds is the number of rounds.
	Rounds int
	// Duration is how long each work is measured in each round, Warm how long it runs before, and Pause how long nothing
	// runs between two works.
	Duration, Warm, Pause time.Duration
	// Dir is the folder for data; empty: a new folder in the working directory.
	Dir string
	// Only, if not empty, selects works whose names contain it.
	Only string
	// Seed is the seed of the arrival times of open loops.
	Seed uint64
}

// Flags adds the plan's flags.
func (p *Plan) Flags(flags *pflag.FlagSet) {
	flags.IntVar(&p.Rounds, "rounds", 3, "number of rounds")
	flags.DurationVar(&p.Duration, "duration", 4*time.Second, "how long each work runs in each round")
	flags.DurationVar(&p.Warm, "warm", time.Second, "how long each work runs before it is measured")
	flags.DurationVar(&p.Pause, "pause", time.Second, "how long nothing runs between two works")
	flags.StringVar(&p.Dir, "dir", "", "folder for data, which is removed at the end; default: the working directory")
	flags.StringVar(&p.Only, "only", "", "run only the works whose names contain this")
	flags.Uint64Var(&p.Seed, "seed", 1, "seed of the arrival times")
}

// Run measures. In each round it starts each system alone with an empty folder, runs its works one after the other, and
// stops it.
func (p *Plan) Run(ctx context.Context) (_ *Results, err error) {
	if p.Rounds < 1 || p.Duration <= 0 {
		return nil, errors.New("there must be at least one round, and a duration above 0")
	}
	if err := logstore.Supported(); err != nil {
		return nil, err
	}
	if p.Dir != "" {
		if err := os.MkdirAll(p.Dir, 0o700); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp(orHere(p.Dir), "bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	machine, err := inspectMachine(dir)
	if err != nil {
		return nil, err
	}
	r := &Results{
		Machine: machine, Started: time.Now().UTC().Truncate(time.Second), Command: strings.Join(os.Args, " "),
		Rounds: p.Rounds, Seconds: p.Duration.Seconds(), Seed: p.Seed,
	}
	for _, s := range p.Systems {
		version, err := s.Version(ctx)
		if err != nil {
			return nil, err
		}
		r.Systems = append(r.Systems, SystemInfo{Name: s.Name, Version: version})
	}
	for round := range p.Rounds {
		for _, s := range p.Systems {
			if err := p.token(ctx, s, dir, round, r); err != nil {
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
		}
	}
	return r, nil
}

func orHere(dir string) string {
	if dir == "" {
		return "."
	}
	return dir
}

// token measures one system in a round.
func (p *Plan) token(ctx context.Context, s System, dir string, round int, into *Results) (err error) {
	below, err := os.MkdirTemp(dir, "turn-")
	if err != nil {
		return err
	}
	running, err := s.Start(ctx, below)
	if err != nil {
		return withLogs(below, err)
	}
	defer func() {
		running.Stop()
		err = errors.Join(withLogs(below, err), os.RemoveAll(below))
		flushDisks() // this system's unwritten pages must not slow the next one
	}()
	for i, w := range running.Works() {
		if !strings.Contains(w.Name, p.Only) {
			continue
		}
		_, _ = fmt.Fprintf(os.Stderr, "round %d of %d: %s: %s\n", round+1, p.Rounds, s.Name, w.Name)
		seed := p.Seed + uint64(round*1000+i)
		runs, err := p.measure(ctx, running.PIDs(), w, rand.New(rand.NewPCG(seed, seed))) //nolint:gosec // arrival times
		if err != nil {
			return fmt.Errorf("%s: %w", w.Name, err)
		}
		for _, run := range runs {
			run.System, run.Work, run.Round = s.Name, w.Name, round+1
			run.Callers, run.Batch = w.Callers, max(w.Batch, 1)
			into.Runs = append(into.Runs, run)
		}
	}
	return nil
}

// withLogs adds the last lines of the processes' logs to an error.
func withLogs(dir string, err error) error {
	if err == nil {
		return nil
	}
	entries, readErr := os.ReadDir(dir)
	if readErr != nil {
		return err
	}
	for _, entry := range entries {
		if name, found := strings.CutSuffix(entry.Name(), ".log"); found {
			data, readErr := os.ReadFile(dir + "/" + entry.Name())
			if lines := strings.Split(strings.TrimSpace(string(data)), "\n"); readErr == nil && len(data) > 0 {
				err = fmt.Errorf("%w\n%s: %s", err, name, strings.Join(lines[max(len(lines)-3, 0):], "\n"+name+": "))
			}
		}
	}
	return err
}

// measure runs a work as a closed loop, and then as an open loop at its given rates and at half of the closed loop's rate.
func (p *Plan) measure(ctx context.Context, pids []int, w Work, random *rand.Rand) ([]Run, error) {
	m, err := newMeter(pids)
	if err != nil {
		return nil, err
	}
	defer m.close()
	if _, err := closedLoop(ctx, w, p.Warm); err != nil {
		return nil, err
	}
	closed, err := p.metered(ctx, m, func() (load, error) { return closedLoop(ctx, w, p.Duration) })
	if err != nil {
		return nil, err
	}
	closed.count(w, 0)
	runs := []Run{closed}
	if len(w.Rates) == 0 {
		return runs, nil
	}
	rates := slices.Clone(w.Rates)
	if !w.Quick {
		rates = append(rates, closed.PerSecond/2)
	}
	for _, rate := range rates {
		open, err := p.metered(ctx, m, func() (load, error) { return openLoop(ctx, w, rate, p.Duration, random) })
		if err != nil {
			return nil, err
		}
		open.count(w, rate)
		open.Half = len(runs) == 1+len(w.Rates)
		runs = append(runs, open)
	}
	return runs, nil
}

// metered runs a load and returns its measurements and cost.
func (p *Plan) metered(ctx context.Context, m *meter, run func() (load, error)) (Run, error) {
	wait(ctx, p.Pause)
	before, err := m.read()
	if err != nil {
		return Run{}, err
	}
	ownBefore, err := own()
	if err != nil {
		return Run{}, err
	}
	l, err := run()
	if err != nil {
		return Run{}, err
	}
	after, err := m.read()
	if err != nil {
		return Run{}, err
	}
	ownAfter, err := own()
	if err != nil {
		return Run{}, err
	}
	if l.calls == 0 {
		return Run{}, errors.New("no decision was made")
	}
	return Run{load: l, Cost: after.since(before), CallerCPUSeconds: (ownAfter - ownBefore).Seconds()}, nil
}
