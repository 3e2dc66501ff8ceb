package raftnode

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/peer"
)

// sample is a voter's wall clock at the moment when its reply arrived.
type sample struct {
	wall int64
	// roundTrip bounds how old wall was then.
	roundTrip int64
	// at is when the reply arrived, by this node's monotonic clock.
	at int64
}

// sampleLife is how long a sample counts; after that its voter counts as silent.
const sampleLife = 10 * time.Second

// wallViews returns the earlier and the later view of Unix time at a moment of the monotonic clock, from the voters' samples. The earlier
// one is the (f+1)-th largest clock, where voters without a fresh sample count as slow. The later one is the (f+1)-th smallest, where they
// count as fast. At most f of 2f+1 clocks are wrong, so the earlier view is no later than some right clock, and the later view no earlier.
// With fewer than f+1 samples ok is false.
func wallViews(samples []sample, voters int, now int64) (early, late int64, ok bool) {
	wrong := (voters - 1) / 2
	var slow, fast []int64
	for _, s := range samples {
		if age := now - s.at; age <= int64(sampleLife) {
			slow = append(slow, s.wall+age)
			fast = append(fast, s.wall+s.roundTrip+age)
		}
	}
	if len(slow) <= wrong {
		return 0, 0, false
	}
	slices.Sort(slow)
	slices.Sort(fast)
	return slow[len(slow)-1-wrong], max(fast[wrong], slow[len(slow)-1-wrong]), true
}

// samples has the voters' wall clocks.
type samples struct {
	mu     sync.Mutex
	of     map[string]sample
	voters map[string]bool
}

func newSamples() *samples { return &samples{of: map[string]sample{}, voters: map[string]bool{}} }

func (s *samples) add(node string, wall, sent, received int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[node] = sample{wall: wall, roundTrip: received - sent, at: received}
}

func (s *samples) setVoters(voters []raft.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.voters = map[string]bool{}
	for _, v := range voters {
		s.voters[string(v.ID)] = true
	}
}

// views returns the earlier and the later view of Unix time at present.
func (s *samples) views(n *Node) (early, late int64, ok bool) {
	all, voters := s.walls(n)
	if voters == 0 {
		return 0, 0, false
	}
	return wallViews(all, voters, n.config.Clock.Monotonic())
}

// walls returns the fresh samples of the voters' clocks, brought to the present, and the number of voters.
func (s *samples) walls(n *Node) (all []sample, voters int) {
	all, self := s.others(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if self {
		all = append(all, sample{wall: n.config.Clock.Wall(), at: n.config.Clock.Monotonic()})
	}
	return all, len(s.voters)
}

// others returns the fresh samples of the other voters' clocks, brought to the present, and whether this node is a voter.
func (s *samples) others(n *Node) (all []sample, self bool) {
	now := n.config.Clock.Monotonic()
	s.mu.Lock()
	defer s.mu.Unlock()
	all = make([]sample, 0, len(s.voters))
	for id := range s.voters {
		known, have := s.of[id]
		if age := now - known.at; have && id != n.config.ID && age <= int64(sampleLife) {
			all = append(all, sample{wall: known.wall + age, roundTrip: known.roundTrip, at: now})
		}
	}
	return all, s.voters[n.config.ID]
}

// sampleOnce takes a sample of every voter that answers. It returns once enough voters, this node included, have answered, or the time is
// up. Later answers are still recorded.
func (n *Node) sampleOnce(enough func(voters int) int) {
	voters, self := n.voters()
	n.samples.setVoters(voters)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	answered := make(chan bool, len(voters))
	asked := 0
	for _, v := range voters {
		if string(v.ID) == n.config.ID {
			continue
		}
		asked++
		n.wg.Go(func() {
			sent := n.config.Clock.Monotonic()
			reply, err := n.port.Ask(ctx, string(v.ID), string(v.Address), peer.Request{Kind: "probe"})
			if err == nil && reply.Node == string(v.ID) {
				n.samples.add(reply.Node, reply.Wall, sent, n.config.Clock.Monotonic())
				n.apis.learn(reply.Node, reply.API)
			}
			answered <- err == nil
		})
	}
	got, need := 0, enough(len(voters))
	if self {
		got++
	}
	for ; asked > 0 && got < need; asked-- {
		if <-answered {
			got++
		}
	}
	rest := asked
	n.wg.Go(func() {
		for range rest {
			<-answered
		}
		cancel()
	})
	n.measureClocks()
}

// majority and everybody return how many voters sampleOnce waits for.
func majority(voters int) int { return voters/2 + 1 }

func everybody(voters int) int { return voters }

// sampleEvery is the number of ticks between two samples on a node that does not lead. It is small enough that after one lost sample the
// one before still counts (sampleLife).
const sampleEvery = 4

// sampleWalls keeps the samples of the voters' wall clocks fresh: every sampleTick (1 s) while this node leads and stamps entries with
// them, every sampleEvery ticks otherwise. Every node compares its own clock with them.
func (n *Node) sampleWalls() {
	ticker := time.NewTicker(n.config.sampleTick)
	defer ticker.Stop()
	for ticks := 0; ; ticks++ {
		select {
		case <-ticker.C:
		case <-n.closing:
			return
		case <-n.done:
			return
		}
		lead := n.leading.Load()
		if lead == nil && ticks%sampleEvery != 0 {
			continue
		}
		n.sampleOnce(everybody)
		if lead != nil {
			n.raiseVersion()
			n.guardRate(lead)
			n.correctAddresses()
		}
	}
}
