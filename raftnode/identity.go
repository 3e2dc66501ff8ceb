package raftnode

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/peer"
)

// identityScheme begins the URI by which a certificate names a cluster and a node: quotad://CLUSTER/NODE. Without a cluster it
// stands for the node of that id in any.
const identityScheme = "quotad"

// ForeignIdentityError says that a certificate does not stand for the node that it was shown for.
type ForeignIdentityError struct {
	// Node is the node that was meant. Names are what the certificate bears.
	Node  string
	Names []string
}

// Error implements error.
func (e *ForeignIdentityError) Error() string {
	return fmt.Sprintf("the certificate names %s, not node %s: issue one with the DNS name %s, or map one of its names with raft.tls_names",
		strings.Join(e.Names, ", "), e.Node, e.Node)
}

// certificateNames lists the names of a certificate: DNS names, URIs, IP addresses, and the common name where there is nothing else.
func certificateNames(certificate *x509.Certificate) []string {
	names := slices.Clone(certificate.DNSNames)
	for _, uri := range certificate.URIs {
		names = append(names, uri.String())
	}
	for _, ip := range certificate.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 && certificate.Subject.CommonName != "" {
		names = append(names, certificate.Subject.CommonName)
	}
	return names
}

// CheckIdentity tells whether a certificate stands for a node: by a DNS name that is the node's id, by a URI of cluster and node, or by
// any name that is mapped to the id. An empty cluster is one that is not known yet. It returns nil or a *ForeignIdentityError.
func CheckIdentity(certificate *x509.Certificate, node, cluster string, mapped map[string][]string) error {
	names := certificateNames(certificate)
	for _, name := range names {
		if slices.Contains(mapped[name], node) {
			return nil
		}
	}
	if slices.Contains(certificate.DNSNames, node) || slices.ContainsFunc(certificate.URIs, func(u *url.URL) bool {
		return u.Scheme == identityScheme && u.Path == "/"+node && (u.Host == "" || cluster == "" || u.Host == cluster)
	}) {
		return nil
	}
	return &ForeignIdentityError{Node: node, Names: names}
}

// identifies checks that the other side of a connection is the node that it claims to be, or that was meant. Without TLS everybody is
// believed.
func (n *Node) identifies(conn *tls.Conn, node string) error {
	state := conn.ConnectionState()
	if len(state.PeerCertificates) == 0 {
		return errors.New("the peer presented no certificate")
	}
	cluster := ""
	if id := n.cluster.Load(); id != nil {
		cluster = *id
	}
	return CheckIdentity(state.PeerCertificates[0], node, cluster, n.config.PeerNames)
}

// nodeAt returns the node that listens for peers at an address, "" for none that is known.
func (n *Node) nodeAt(address string) string {
	if !n.log.Started() {
		return "" // raft's goroutines begin before this node has raft in hand
	}
	for _, s := range n.servers() {
		if string(s.Address) == address {
			return string(s.ID)
		}
	}
	for _, p := range n.config.Peers {
		if p.RaftAddress == address {
			return p.ID
		}
	}
	return ""
}

// errNoMember says that a caller is no member as far as this node and the members that answer know.
var errNoMember = errors.New("the peer is not a member of this cluster")

// vouchedFor is how long another member's word for a caller is good: the caller may have been removed since. Once this node learns another
// configuration it is good no longer.
const vouchedFor = 10 * time.Second

// vouched remembers when another member vouched for callers.
type vouched struct {
	mu sync.Mutex
	of map[string]vouch
}

// vouch is another member's word for a caller, given when this node's newest committed configuration had this index.
type vouch struct {
	at            time.Time
	configuration uint64
}

// admitMember lets only members speak raft: with TLS every certificate of the CA could otherwise ask for votes. This node's own
// configuration may be old, so where it does not know a caller, the members that it does know are asked.
func (n *Node) admitMember(caller peer.Preface) error {
	if n.config.PeerTLS == nil || n.knownMember(caller.Node) {
		return nil
	}
	configuration := n.raft.GetConfiguration()
	if err := configuration.Error(); err != nil {
		return err
	}
	servers := configuration.Configuration().Servers
	if len(servers) == 0 {
		return nil // it waits to be added, and asks the caller itself
	}
	known, _ := n.configured.newest()
	n.vouched.mu.Lock()
	word, given := n.vouched.of[caller.Node]
	n.vouched.mu.Unlock()
	if given && word.configuration == known && time.Since(word.at) < vouchedFor {
		return nil
	}
	vouches := n.othersVouch(servers, caller.Node, known)
	n.vouched.mu.Lock()
	defer n.vouched.mu.Unlock()
	if !vouches {
		delete(n.vouched.of, caller.Node)
		return errNoMember
	}
	n.vouched.of[caller.Node] = vouch{at: time.Now(), configuration: known}
	return nil
}

// othersVouch asks all other members at once whether a node is one. One that knows an older configuration than this node does not know of
// its removal.
func (n *Node) othersVouch(servers []raft.Server, node string, known uint64) bool {
	ctx, cancel := context.WithTimeout(context.Background(), peer.Timeout)
	defer cancel()
	answers := make(chan bool, len(servers))
	for _, s := range servers {
		go func() {
			if string(s.ID) == n.config.ID {
				answers <- false
				return
			}
			reply, err := n.port.Ask(ctx, string(s.ID), string(s.Address), peer.Request{Kind: "hello", Node: node})
			answers <- err == nil && reply.Member && reply.Configuration >= known
		}()
	}
	for range servers {
		if <-answers {
			return true
		}
	}
	return false
}
