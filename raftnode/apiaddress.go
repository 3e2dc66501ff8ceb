package raftnode

import (
	"cmp"
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/quotad/quotad/fsm/logpb"
)

// maxAPIAddress bounds the length of a member's API address, in bytes.
const maxAPIAddress = 300

// apiAddresses are the API addresses that members, this node included, report from their own settings. The state may have an older one of a
// restarted node.
type apiAddresses struct {
	mu sync.Mutex
	of map[string]string
	// recording is set while this node records a changed address.
	recording atomic.Bool
}

// learn records the address that a member reports.
func (a *apiAddresses) learn(node, address string) {
	if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" || len(address) > maxAPIAddress {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = map[string]string{}
	}
	a.of[node] = address
}

// changed returns the commands that correct the members' addresses in the state.
func (a *apiAddresses) changed(recorded map[string]string) (commands []*logpb.Command) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, known := range recorded {
		if own := a.of[id]; own != "" && own != known && !a.takenLocked(recorded, id, own) {
			commands = append(commands, putMember(id, own))
		}
	}
	return commands
}

// taken says whether another member has an address: calls for a node recorded there would reach that member.
func (a *apiAddresses) taken(recorded map[string]string, id, address string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.takenLocked(recorded, id, address)
}

func (a *apiAddresses) takenLocked(recorded map[string]string, id, address string) bool {
	for other, known := range recorded {
		if other != id && cmp.Or(a.of[other], known) == address {
			return true
		}
	}
	return false
}

func putMember(id, apiAddress string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_PutMember{PutMember: &logpb.PutMember{Id: id, ApiAddress: apiAddress}}}
}

// recordedAddresses returns the API addresses of the members that the state has.
func (n *Node) recordedAddresses() map[string]string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	recorded := map[string]string{}
	for _, m := range n.machine.State().Members() {
		recorded[m.ID] = m.APIAddress
	}
	return recorded
}

// correctAddresses records changed API addresses in the state. Only the leader can.
func (n *Node) correctAddresses() {
	commands := n.apis.changed(n.recordedAddresses())
	if len(commands) == 0 || !n.apis.recording.CompareAndSwap(false, true) {
		return
	}
	n.wg.Go(func() {
		defer n.apis.recording.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), n.config.ApplyTimeout)
		defer cancel()
		for _, c := range commands {
			n.logger.Info("a member's API address changed", "node", c.GetPutMember().Id, "api", c.GetPutMember().ApiAddress)
		}
		if err := n.proposeOwn(ctx, commands...); err != nil {
			n.logger.Warn("could not record a changed API address", "error", err)
		}
	})
}

// misaddressed returns the API address that the members have for this node, and whether it differs from the node's own.
func (n *Node) misaddressed() (recorded string, wrong bool) {
	recorded = n.recordedAddresses()[n.config.ID]
	return recorded, recorded != "" && n.config.APIAddress != "" && recorded != n.config.APIAddress
}
