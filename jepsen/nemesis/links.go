package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quotad/quotad/jepsen/cluster"
)

// link is one direction between two hosts.
type link struct{ from, to string }

func (l link) String() string { return l.from + ">" + l.to }

// between are both directions between the nodes of two groups.
func between(a, b []*cluster.Node) []link {
	var links []link
	for _, x := range a {
		for _, y := range b {
			links = append(links, link{x.ID, y.ID}, link{y.ID, x.ID})
		}
	}
	return links
}

// partition drops all packets on the links that which chooses, and heals them.
func partition(name string, unavailable bool, which func(ctx context.Context, e *Env, r *rand.Rand) ([]link, error)) Fault {
	return Fault{Name: name, Unavailable: unavailable, do: func(
		ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context),
	) (hit, error) {
		links, err := which(ctx, e, r)
		if err != nil {
			return hit{}, err
		}
		before := e.Links.Dropped()
		for _, l := range links {
			err = errors.Join(err, e.Links.Cut(l.from, l.to))
		}
		hold(ctx)
		dropped := e.Links.Dropped() - before
		for _, l := range links {
			err = errors.Join(err, e.Links.HealLink(l.from, l.to))
		}
		h := hit{targets: words(links), seen: fmt.Sprintf("%d packets dropped", dropped)}
		if err == nil && dropped == 0 {
			err = errNotSeen
		}
		return h, err
	}}
}

func words(links []link) []string {
	all := make([]string, len(links))
	for i, l := range links {
		all[i] = l.String()
	}
	return all
}

func leaderAlone(ctx context.Context, e *Env, _ *rand.Rand) ([]link, error) {
	leader, others, err := e.leader(ctx)
	if err != nil {
		return nil, err
	}
	return between([]*cluster.Node{leader}, others), nil
}

func followerAlone(ctx context.Context, e *Env, r *rand.Rand) ([]link, error) {
	follower, err := e.follower(ctx, r)
	if err != nil {
		return nil, err
	}
	nodes, _ := all(ctx, e, r)
	return between([]*cluster.Node{follower}, without(nodes, follower)), nil
}

func without(nodes []*cluster.Node, one *cluster.Node) []*cluster.Node {
	var rest []*cluster.Node
	for _, node := range nodes {
		if node != one {
			rest = append(rest, node)
		}
	}
	return rest
}

// leaderDeaf cuts all links to the leader, leaderMute all links from it.
func leaderDeaf(ctx context.Context, e *Env, _ *rand.Rand) ([]link, error) {
	leader, others, err := e.leader(ctx)
	var links []link
	for _, other := range others {
		links = append(links, link{other.ID, leader.ID})
	}
	return links, err
}

func leaderMute(ctx context.Context, e *Env, _ *rand.Rand) ([]link, error) {
	leader, others, err := e.leader(ctx)
	var links []link
	for _, other := range others {
		links = append(links, link{leader.ID, other.ID})
	}
	return links, err
}

// ring leaves every node a majority of reachable nodes, each a different one: each node loses the link to one other. With three nodes one
// link is cut, so that the third node is a bridge.
func ring(ctx context.Context, e *Env, r *rand.Rand) ([]link, error) {
	nodes, _ := all(ctx, e, r)
	r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	if len(nodes) < 5 {
		return between(nodes[:1], nodes[1:2]), nil
	}
	var links []link
	for i, node := range nodes {
		links = append(links, between([]*cluster.Node{node}, []*cluster.Node{nodes[(i+2)%len(nodes)]})...)
	}
	return links, nil
}

// halves cuts the cluster into two random halves.
func halves(ctx context.Context, e *Env, r *rand.Rand) ([]link, error) {
	nodes, _ := all(ctx, e, r)
	r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	at := len(nodes) / 2
	return between(nodes[:at], nodes[at:]), nil
}

func everyone(ctx context.Context, e *Env, r *rand.Rand) ([]link, error) {
	nodes, _ := all(ctx, e, r)
	var links []link
	for i := range nodes {
		links = append(links, between(nodes[i:i+1], nodes[i+1:])...)
	}
	return links, nil
}

// flapping cuts and heals links faster than an election takes.
func flapping() Fault {
	return Fault{Name: "flapping-links", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		links, err := leaderAlone(ctx, e, r)
		if err != nil {
			return hit{}, err
		}
		before, times := e.Links.Dropped(), 0
		loop, stop := context.WithCancel(ctx)
		failed := make(chan error, 1)
		go func() {
			var err error
			for cut := true; loop.Err() == nil && err == nil; cut = !cut {
				for _, l := range links {
					if cut {
						err = errors.Join(err, e.Links.Cut(l.from, l.to))
					} else {
						err = errors.Join(err, e.Links.HealLink(l.from, l.to))
					}
				}
				times++
				select {
				case <-loop.Done():
				case <-time.After(time.Duration(150+r.IntN(900)) * time.Millisecond):
				}
			}
			failed <- err
		}()
		hold(ctx)
		stop()
		err = <-failed
		for _, l := range links {
			err = errors.Join(err, e.Links.HealLink(l.from, l.to))
		}
		return hit{targets: words(links), seen: fmt.Sprintf("%d turns, %d packets dropped", times, e.Links.Dropped()-before)}, err
	}}
}

// loss drops a share of the packets between all nodes.
func loss(percent int) Fault {
	return Fault{
		Name: fmt.Sprintf("loss-%d%%", percent), Unavailable: percent > 5,
		do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
			links, _ := everyone(ctx, e, r)
			before := e.Links.Dropped()
			var err error
			for _, l := range links {
				err = errors.Join(err, e.Links.Loss(l.from, l.to, percent))
			}
			hold(ctx)
			h := hit{targets: []string{"all links"}, seen: fmt.Sprintf("%d packets dropped", e.Links.Dropped()-before)}
			for _, l := range links {
				err = errors.Join(err, e.Links.Loss(l.from, l.to, 0))
			}
			return h, err
		},
	}
}

// slowLink bounds the bandwidth from a node.
func slowLink(bytesPerSecond int64) Fault {
	return Fault{Name: "slow-link", Unavailable: true, do: func(
		ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context),
	) (hit, error) {
		nodes, err := theLeader(ctx, e, r)
		if err == nil && r.IntN(2) == 0 {
			nodes, err = aFollower(ctx, e, r)
		}
		if err != nil {
			return hit{}, err
		}
		err = e.Links.Rate(nodes[0].ID, bytesPerSecond)
		hold(ctx)
		return hit{targets: names(nodes...), seen: fmt.Sprintf("%d bytes/s", bytesPerSecond)}, errors.Join(err, e.Links.Rate(nodes[0].ID, 0))
	}}
}

// delay delays all streams between nodes.
func delay(mean, jitter time.Duration) Fault {
	return Fault{Name: "delay", Unavailable: true, do: func(
		ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context),
	) (hit, error) {
		links, err := everyone(ctx, e, r)
		for _, l := range links {
			err = errors.Join(err, e.Links.Delay(l.from, l.to, mean, jitter))
		}
		hold(ctx)
		for _, l := range links {
			err = errors.Join(err, e.Links.Delay(l.from, l.to, 0, 0))
		}
		return hit{targets: []string{"all links"}, seen: fmt.Sprintf("%v ± %v", mean, jitter)}, err
	}}
}

// halfCut resets streams between nodes in the middle of a message.
func halfCut() Fault {
	return Fault{Name: "half-cut-streams", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		links, err := leaderAlone(ctx, e, r)
		for _, l := range links {
			err = errors.Join(err, e.Links.ResetAfter(l.from, l.to, 1+r.Int64N(20_000)))
		}
		hold(ctx)
		return hit{targets: words(links), seen: "reset once each"}, err
	}}
}

// stallStream keeps connections open and delivers nothing, like a reader that stopped reading.
func stallStream() Fault {
	return Fault{Name: "stalled-streams", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		links, err := followerAlone(ctx, e, r)
		for _, l := range links {
			err = errors.Join(err, e.Links.Stall(l.from, l.to, true))
		}
		hold(ctx)
		for _, l := range links {
			err = errors.Join(err, e.Links.Stall(l.from, l.to, false))
		}
		return hit{targets: words(links), seen: "stalled"}, err
	}}
}

// isolateClients cuts the holders that check fences off from some or all nodes.
func isolateClients() Fault {
	return Fault{Name: "isolate-clients", do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		host := e.Sleepers[r.IntN(len(e.Sleepers))].Host()
		nodes, _ := all(ctx, e, r)
		if r.IntN(2) == 0 {
			nodes = nodes[:1+r.IntN(len(nodes))]
		}
		before := e.Links.Dropped()
		var err error
		for _, node := range nodes {
			err = errors.Join(err, e.Links.Cut(host, node.ID), e.Links.Cut(node.ID, host))
		}
		hold(ctx)
		h := hit{targets: append(names(nodes...), host), seen: fmt.Sprintf("%d packets dropped", e.Links.Dropped()-before)}
		for _, node := range nodes {
			err = errors.Join(err, e.Links.HealLink(host, node.ID), e.Links.HealLink(node.ID, host))
		}
		return h, err
	}}
}
