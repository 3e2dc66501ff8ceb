package raftnode

import "github.com/quotad/quotad/raftnode/peer"

// CheckPeerTLS closes the open connections to and from peers whose certificates are not good by the present settings (Config.PeerTLS), as
// after a CA was taken out of them. Others stay open.
func (n *Node) CheckPeerTLS() { n.port.CheckTLS() }

// judgeMembers closes open connections on which a node speaks raft that is no member any more, each time this node learns a configuration.
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
