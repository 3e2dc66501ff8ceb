package raftnode

import "github.com/quotad/quotad/raftnode/peer"

// CheckPeerTLS closes the open connections whose peer certificates are not valid under the present settings (Config.PeerTLS), as after a CA
// was removed. Other connections stay open.
func (n *Node) CheckPeerTLS() { n.port.CheckTLS() }

// judgeMembers closes the open raft connections of nodes that are no longer members, each time this node learns a configuration.
func (n *Node) judgeMembers() {
	for {
		select {
		case <-n.configured.learned:
		case <-n.closing:
			return
		case <-n.done:
			return
		}
		judged := map[string]error{}
		n.port.CheckCallers(func(node string) error {
			if _, done := judged[node]; !done {
				judged[node] = n.admitMember(peer.Preface{Node: node})
			}
			return judged[node]
		})
	}
}
