package raftnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode/peer"
)

// caughtUp is how many entries a member may lack and still be promoted or become leader by a transfer.
const caughtUp = 100

// MemberError says that a member operation names an unknown or unfit member.
type MemberError struct {
	ID, Message, Hint string
	// Absent: no member has this id.
	Absent bool
}

// Error implements error.
func (e *MemberError) Error() string { return fmt.Sprintf("member %q: %s", e.ID, e.Message) }

// AddLearner adds a node as a learner, without a vote. Adding it again with the same addresses changes nothing. *MemberError: the id or an
// address is taken, or no node at the address can be added.
func (n *Node) AddLearner(ctx context.Context, id, raftAddress, apiAddress string) error {
	since, servers, err := n.configuration()
	if err != nil {
		return err
	}
	for _, s := range servers {
		known := n.apiAddress(string(s.ID))
		if string(s.ID) == id && string(s.Address) == raftAddress && (known == "" || known == apiAddress) {
			return n.putMember(ctx, id, apiAddress)
		}
		if string(s.ID) == id || string(s.Address) == raftAddress || known == apiAddress {
			return &MemberError{
				ID: id, Message: fmt.Sprintf("the id or an address is already in use by %s, raft %s, api %s", s.ID, s.Address, known),
				Hint: "use a new id and new addresses",
			}
		}
	}
	if err := n.vet(ctx, id, raftAddress); err != nil {
		return err
	}
	if err := n.putMember(ctx, id, apiAddress); err != nil {
		return err
	}
	return n.change(n.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(raftAddress), since, n.config.ApplyTimeout))
}

// vet asks the node at a new member's address whether it can join, so that a failed attempt leaves nothing behind.
func (n *Node) vet(ctx context.Context, id, address string) error {
	ctx, cancel := context.WithTimeout(ctx, peer.Timeout)
	defer cancel()
	reply, err := n.port.Ask(ctx, id, address, peer.Request{Kind: "hello", Node: n.config.ID})
	unfit := &MemberError{ID: id, Hint: `start it first, with an empty data directory and "join: true"`}
	switch own := n.cluster.Load(); {
	case errors.As(err, new(*peer.RefusedError)):
		unfit.Message = fmt.Sprintf("the node at %s rejects this node: %v", address, err)
	case err != nil:
		unfit.Message = fmt.Sprintf("no answer at %s: %v", address, err)
	case reply.Node != id:
		unfit.Message = fmt.Sprintf("the node at %s is %q", address, reply.Node)
	case reply.Cluster != "" && own != nil && reply.Cluster != *own:
		unfit.Message = fmt.Sprintf("the node at %s belongs to another cluster, %s", address, reply.Cluster)
	case reply.Empty && reply.List != "":
		unfit.Message = "the node has a list of peers and waits to form its own cluster"
	default:
		return nil
	}
	return unfit
}

func (n *Node) putMember(ctx context.Context, id, apiAddress string) error {
	return n.proposeOwn(ctx, putMember(id, apiAddress))
}

// Promote makes a learner that has caught up a voter. *MemberError: it is not a member, or it has not caught up.
func (n *Node) Promote(ctx context.Context, id string) error {
	since, servers, err := n.configuration()
	if err != nil {
		return err
	}
	for _, s := range servers {
		switch {
		case string(s.ID) != id:
			continue
		case s.Suffrage == raft.Voter:
			return nil
		}
		if err := n.hasCaughtUp(ctx, s); err != nil {
			return err
		}
		return n.change(n.raft.AddVoter(s.ID, s.Address, since, n.config.ApplyTimeout))
	}
	return &MemberError{ID: id, Message: "no such member", Hint: "add it first with quotad member add", Absent: true}
}

// hasCaughtUp returns an error if a member does not answer or lacks more than caughtUp entries, or if this node cannot tell. A member with
// an empty log may not have been admitted yet.
func (n *Node) hasCaughtUp(ctx context.Context, s raft.Server) error {
	match, err := n.matchIndex(ctx, s)
	switch last := n.raft.LastIndex(); {
	case n.leading.Load() == nil:
		return n.notAccepted(n.whyNotLeading())
	case ctx.Err() != nil:
		return n.notAccepted(NotReady)
	case err != nil:
		return &MemberError{
			ID: string(s.ID), Message: fmt.Sprintf("no answer at %s", s.Address),
			Hint: "check that the node runs, and read its log",
		}
	case match == 0 || match+caughtUp < last:
		return &MemberError{
			ID: string(s.ID), Message: fmt.Sprintf("the log has entries up to %d of %d", match, last), Hint: "wait until the node has caught up",
		}
	}
	return nil
}

// matchIndex asks a member for the end of its log.
func (n *Node) matchIndex(ctx context.Context, s raft.Server) (uint64, error) {
	reply, err := n.port.Ask(ctx, string(s.ID), string(s.Address), peer.Request{Kind: "probe"})
	if err != nil {
		return 0, err
	}
	return reply.Last, nil
}

// Remove removes a member. Without force it refuses if no majority of the remaining voters answers. *MemberError: that refusal, or the node
// is the last voter or not a member (Absent), as after a removal whose answer was lost.
func (n *Node) Remove(ctx context.Context, id string, force bool) error {
	since, servers, err := n.configuration()
	if err != nil {
		return err
	}
	found, voters, alive := false, 0, 0
	for _, s := range servers {
		if string(s.ID) == id {
			found = true
			continue
		}
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if string(s.ID) == n.config.ID {
			alive++
		} else if _, err := n.matchIndex(ctx, s); err == nil {
			alive++
		}
	}
	switch {
	case !found:
		return &MemberError{ID: id, Message: "no such member", Hint: "quotad status lists the members", Absent: true}
	case voters == 0:
		return &MemberError{ID: id, Message: "the node is the last voter", Hint: "stop the process to end the cluster"}
	case alive < voters/2+1 && !force:
		return &MemberError{
			ID: id, Message: fmt.Sprintf("only %d of the other %d voters answer", alive, voters),
			Hint: "start the other voters first, or use --force",
		}
	}
	if err := n.proposeOwn(ctx, &logpb.Command{Kind: &logpb.Command_DeleteMember{
		DeleteMember: &logpb.DeleteMember{Id: id},
	}}); err != nil {
		return err
	}
	return n.change(n.raft.RemoveServer(raft.ServerID(id), since, n.config.ApplyTimeout))
}

// TransferLeadership transfers leadership to a voter (empty: the one with the longest log) and returns the new leader's id.
func (n *Node) TransferLeadership(ctx context.Context, id string) (string, error) {
	_, servers, err := n.configuration()
	if err != nil {
		return "", err
	}
	var unfit error
	begin := func() (raft.Future, error) { return n.raft.LeadershipTransfer(), nil }
	if id != "" {
		i := slices.IndexFunc(servers, func(s raft.Server) bool { return string(s.ID) == id && s.Suffrage == raft.Voter })
		if i < 0 || id == n.config.ID {
			absent := !slices.ContainsFunc(servers, func(s raft.Server) bool { return string(s.ID) == id })
			return "", &MemberError{ID: id, Message: "not a voter other than the leader", Hint: "quotad status lists the voters", Absent: absent}
		}
		begin = func() (raft.Future, error) {
			// Otherwise raft would try for an election timeout, refuse all commands meanwhile, and might never finish.
			if unfit = n.hasCaughtUp(ctx, servers[i]); unfit != nil {
				return nil, unfit
			}
			return n.raft.LeadershipTransferToServer(servers[i].ID, servers[i].Address), nil
		}
	}
	switch err := n.transfers.attempt(ctx, begin, n.await); {
	case unfit != nil:
		return "", unfit
	case err != nil && errors.Is(err, ctx.Err()):
		return "", n.notAccepted(NotReady)
	case err != nil:
		return "", n.classify(err)
	}
	for {
		if leader := n.knownLeader(); leader != "" && leader != n.config.ID {
			return leader, nil
		}
		select {
		case <-ctx.Done():
			return "", &UnknownError{Err: ctx.Err()}
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// configuration returns the members, and the index that raft compares: a change fails if another one came first. It returns the committed
// configuration only, so that "already done" cannot be undone later.
func (n *Node) configuration() (index uint64, servers []raft.Server, err error) {
	if n.leading.Load() == nil {
		return 0, nil, n.notAccepted(n.whyNotLeading())
	}
	index, servers = n.configured.newest()
	return index, servers, nil
}

// change waits for a membership change and classifies its error. Raft's timeout bounds the wait.
func (n *Node) change(future raft.Future) error {
	if err := n.await(future); err != nil {
		return n.classify(err)
	}
	return nil
}
