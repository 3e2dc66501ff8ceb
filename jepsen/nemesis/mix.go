package nemesis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Mix is a set of faults with their frequency and length.
type Mix struct {
	Name string
	// Faults are the names of single faults, Pairs those of faults that come together.
	Faults []string
	Pairs  [][2]string
	// Script injects the faults once each, in their order, each for Longest: a short run that covers all of them.
	Script bool
	// Each injects every fault once, in an order from the seed, before random ones: a run of sufficient length misses none.
	Each bool
	// Shortest and Longest bound the length of a fault, Quiet is the shortest time between two.
	Shortest, Longest, Quiet time.Duration
}

// Faults are all faults.
func Faults() []Fault {
	return []Fault{
		kill("kill-leader", theLeader, false), kill("kill-follower", aFollower, false), kill("kill-majority", aMajority, true),
		kill("kill-all", all, true),
		crashLoop(), crashAt(), storm(), starve(),
		pause("pause-leader", theLeader, false), pause("pause-follower", aFollower, false), pause("pause-all", all, true),
		stop("stop-leader", theLeader), stop("stop-follower", aFollower), rolling(), transfer(), pauseWorker(),
		partition("partition-leader", false, leaderAlone), partition("partition-follower", false, followerAlone),
		partition("partition-halves", false, halves), partition("partition-all", true, everyone), partition("partition-ring", false, ring),
		partition("leader-deaf", false, leaderDeaf), partition("leader-mute", false, leaderMute), flapping(), isolateClients(),
		loss(1), loss(20), slowLink(125_000), delay(80*time.Millisecond, 40*time.Millisecond), halfCut(), stallStream(),
		jump(), aheadOnce(), strobe(), drift(), wrongRate(),
		onDisk("slow-sync", false, theLeader, func(d Disk, r *rand.Rand) { d.SlowSync(time.Duration(10+r.IntN(500)) * time.Millisecond) }),
		onDisk("stalled-sync", true, theLeader, func(d Disk, _ *rand.Rand) { d.SlowSync(10 * time.Second) }),
		onDisk("failing-sync", true, theLeader, func(d Disk, _ *rand.Rand) { d.FailSyncs(1) }),
		onDisk("failing-sync-follower", true, aFollower, func(d Disk, _ *rand.Rand) { d.FailSyncs(-1) }),
		onDisk("disk-full", true, theLeader, func(d Disk, r *rand.Rand) { d.Full(r.Int64N(64 << 10)) }),
		powerCut("power-cut-leader", theLeader, false), powerCut("power-cut-all", all, true),
		wipe(), rot("bit-flips", killed, flip), rot("cut-files", stopped, cut), loseHalf(), trouble(),
		gatewayKilled(), gatewayCutOff(), gatewayUpstreamCuts(), gatewayKeySwapped(),
		stoppedLeader(), hostileCaller(), rotate(), restoreWorking(),
		upgrade("upgrade-followers", true, newBuild), upgrade("upgrade-others", false, newBuild),
		upgrade("downgrade-followers", true, previousBuild), upgrade("downgrade-others", false, previousBuild), unfit(),
	}
}

// Named returns a fault by its name.
func Named(name string) (Fault, error) {
	for _, fault := range Faults() {
		if fault.Name == name {
			return fault, nil
		}
	}
	return Fault{}, fmt.Errorf("there is no fault %q", name)
}

// steps are the choices of a run. Each seed gives each fault its own weight, so that some runs have much of one and nothing of another. A
// quarter of the time is quiet. Every fault of the mix is in the list at least once.
func (m Mix) steps(r *rand.Rand) [][]Fault {
	var steps [][]Fault
	add := func(names ...string) {
		var step []Fault
		for _, name := range names {
			fault, err := Named(name)
			if err != nil {
				panic(err) // a mix is part of the program
			}
			step = append(step, fault)
		}
		weight := 1 + r.IntN(4)
		if m.Script {
			weight = 1
		}
		for range weight {
			steps = append(steps, step)
		}
	}
	for _, name := range m.Faults {
		add(name)
	}
	for _, pair := range m.Pairs {
		add(pair[0], pair[1])
	}
	if !m.Script {
		steps = append(steps, make([][]Fault, len(steps)/3)...)
	}
	return steps
}

// first are the steps before random ones, in an order from the seed.
func (m Mix) first(r *rand.Rand) [][]Fault {
	if !m.Each {
		return nil
	}
	once := m
	once.Script = true
	steps := once.steps(r)
	r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	return steps
}

// Without returns the mix without faults that a kind of network or disk does not support: delays need proxies, torn writes need disks of
// the suite. unfit are prefixes of names.
func (m Mix) Without(unfit ...string) Mix {
	fit := func(name string) bool {
		return !slices.ContainsFunc(unfit, func(word string) bool { return strings.HasPrefix(name, word) })
	}
	kept := m
	kept.Faults, kept.Pairs = nil, nil
	for _, name := range m.Faults {
		if fit(name) {
			kept.Faults = append(kept.Faults, name)
		}
	}
	for _, pair := range m.Pairs {
		if fit(pair[0]) && fit(pair[1]) {
			kept.Pairs = append(kept.Pairs, pair)
		}
	}
	return kept
}

// Only returns the mix with the named faults instead of its own.
func (m Mix) Only(names ...string) (Mix, error) {
	for _, name := range names {
		if _, err := Named(name); err != nil {
			return Mix{}, err
		}
	}
	m.Faults, m.Pairs, m.Script, m.Each = names, nil, false, true
	if m.Longest == 0 {
		m.Shortest, m.Longest, m.Quiet = time.Second, 6*time.Second, time.Second
	}
	return m, nil
}

// Names are all faults of the mix, those of pairs included, sorted.
func (m Mix) Names() []string {
	names := slices.Clone(m.Faults)
	for _, pair := range m.Pairs {
		names = append(names, pair[0], pair[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// overhead is the usual bound of a fault's time beyond its length: a node that refuses its disk and is replaced, or a rotation.
const overhead = 10 * time.Second

// Demanded are the faults that a run of a length must have had: all, if each comes once before random ones and the time suffices.
func (m Mix) Demanded(length time.Duration) []string {
	if !m.Each && !m.Script || length < time.Duration(len(m.Faults))*((m.Shortest+m.Longest)/2+m.Quiet*3/2+overhead) {
		return nil
	}
	return m.Names()
}

// Mixes are the mixes that can be run by name.
func Mixes() []Mix {
	processes := []string{
		"kill-leader", "kill-follower", "kill-majority", "kill-all", "crash-loop", "crash-point", "kill-storm", "starve-leader", "pause-leader",
		"pause-follower", "pause-all", "pause-clients",
	}
	links := []string{
		"partition-leader", "partition-follower", "partition-halves", "partition-all", "partition-ring", "leader-deaf", "leader-mute",
		"flapping-links", "isolate-clients", "loss-1%", "loss-20%", "slow-link",
	}
	proxied := []string{"delay", "half-cut-streams", "stalled-streams"}
	clocks := []string{"clock-jump", "clock-ahead-once", "clock-strobe", "clock-drift"}
	orders := []string{"stop-leader", "stop-follower", "rolling-restart", "transfer", "replace-node"}
	disks := []string{
		"slow-sync", "stalled-sync", "failing-sync", "failing-sync-follower", "disk-full", "power-cut-leader", "power-cut-all", "bit-flips",
		"cut-files", "half-lost-disk",
	}
	edge := []string{
		"stopped-leader-with-forwarded-calls", "hostile-caller", "clock-ahead-once", Rotation, "restore-while-working", "half-lost-disk",
		"bit-flips", "cut-files", "kill-leader",
	}
	pairs := [][2]string{
		{"pause-leader", "kill-follower"},
		{"partition-leader", "kill-follower"},
		{"kill-leader", "pause-follower"},
		{"pause-clients", "kill-leader"},
		{"clock-jump", "kill-leader"},
		{"partition-follower", "rolling-restart"},
		{"transfer", "partition-follower"},
		{"isolate-clients", "partition-leader"},
	}
	diskPairs := [][2]string{{"partition-leader", "power-cut-all"}, {"slow-sync", "kill-follower"}, {"disk-full", "partition-follower"}}
	join := func(lists ...[]string) []string { return slices.Concat(lists...) }
	each := func(m Mix) Mix {
		m.Each = true
		return m
	}
	standard := Mix{Shortest: time.Second, Longest: 6 * time.Second, Quiet: time.Second}
	mix := func(name string, faults []string, pairs [][2]string) Mix {
		m := standard
		m.Name, m.Faults, m.Pairs = name, faults, pairs
		return m
	}
	return []Mix{
		mix("default", join(processes, links, clocks, orders, disks, proxied,
			[]string{"provider-trouble", "stopped-leader-with-forwarded-calls", "hostile-caller", Rotation, "restore-while-working"}),
			slices.Concat(pairs, diskPairs)),
		mix("processes", processes, pairs[:1]), mix("links", join(links, proxied), nil),
		mix("clocks", join(clocks, []string{"kill-leader"}), nil),
		mix("disks", disks, diskPairs), mix("members", join(orders, []string{"kill-leader", "partition-follower"}), nil),
		mix("failover", []string{"kill-leader", "partition-leader", "pause-leader"}, nil),
		each(mix("damaged-disks", []string{"bit-flips", "cut-files", "half-lost-disk"}, nil)),
		each(mix("edge", edge, nil)),
		each(mix("gateway", []string{
			"gateway-killed", "gateway-cut-off", "gateway-upstream-cuts", "gateway-key-swapped", "provider-trouble", "kill-leader",
			"partition-leader",
			"pause-leader", "rolling-restart",
		}, [][2]string{{"gateway-killed", "kill-leader"}, {"gateway-upstream-cuts", "provider-trouble"}})),
		mix("power-cuts", []string{"power-cut-all", "power-cut-leader"}, nil),
		{Name: "wrong-clocks", Faults: []string{"clock-rate"}, Shortest: 90 * time.Second, Longest: 90 * time.Second, Quiet: 5 * time.Second},
		{Name: "slow-disks", Faults: []string{"slow-sync"}, Shortest: 2 * time.Second, Longest: 4 * time.Second, Quiet: 1500 * time.Millisecond},
		script("short", "kill-leader", "partition-follower", "pause-leader", "pause-clients", "partition-leader", "clock-jump",
			"kill-all", "stop-leader"),
		// Builds lead each other in turn, with faults while they are mixed.
		script(Upgrade, "upgrade-followers", "partition-follower", "kill-leader", "upgrade-others", unfitFault,
			"downgrade-followers", "partition-follower", "kill-leader", "downgrade-others"),
		mix("none", nil, nil),
	}
}

// script is a short mix whose faults come in order.
func script(name string, faults ...string) Mix {
	const length = 4 * time.Second
	return Mix{Name: name, Faults: faults, Script: true, Shortest: length, Longest: length, Quiet: 1500 * time.Millisecond}
}

// MixNamed returns a mix by its name.
func MixNamed(name string) (Mix, error) {
	var names []string
	for _, mix := range Mixes() {
		if mix.Name == name {
			return mix, nil
		}
		names = append(names, mix.Name)
	}
	return Mix{}, fmt.Errorf("there is no mix %q; there are %s", name, strings.Join(names, ", "))
}
