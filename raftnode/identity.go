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
	"golang.org/x/sync/singleflight"

	"github.com/quotad/quotad/raftnode/peer"
)

// identityScheme is the scheme of the URI with which a certificate names a cluster and a node: quotad://CLUSTER/NODE. Without a cluster it
// names the node of that id in any cluster.
const identityScheme = "quotad"

// ForeignIdentityError says that a certificate does not belong to the expected node.
type ForeignIdentityError struct {
	// Node is the expected node. Names are the certificate's names.
	Node  string
	Names []string
}

// Error implements error.
func (e *ForeignIdentityError) Error() string {
	return fmt.Sprintf("the certificate names %s, not node %s: issue one with the DNS name %s, or map one of its names with raft.tls_names",
		strings.Join(e.Names, ", "), e.Node, e.Node)
}

// certificateNames lists the names of a certificate: DNS names, URIs and IP addresses, or the common name if it has none of these.
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

// CheckIdentity checks that a certificate belongs to a node: by a DNS name equal to the node's id, by a URI of cluster and node, or by a
// name mapped to the id. An empty cluster matches any. It returns nil or a *ForeignIdentityError.
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

// identifies checks that the certificate on a connection belongs to a node: the one that the caller claims to be, or the one that was
// dialled.
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

// nodeAt returns the node that listens for peers at an address, "" if none is known.
func (n *Node) nodeAt(address string) string {
	if !n.log.Started() {
		return "" // raft's goroutines start before n.raft is set
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

// errNoMember says that a caller is not a member as far as this node and the answering members know.
var errNoMember = errors.New("the peer is not a member of this cluster")

// confirmedFor is how long the answer that a caller is a member holds: the caller may be removed meanwhile. The answer that it is not a
// member holds for refusedFor, since it may be added at any moment. Without this cache, each connection of a caller with a certificate of
// the CA would cost each member a question. A new configuration on this node ends both.
const (
	confirmedFor = 10 * time.Second
	refusedFor   = time.Second
)

// maxConfirmations bounds the answers remembered: no honest cluster has as many nodes that others do not know.
const maxConfirmations = 256

// confirmations caches the other members' answers about callers, and asks about each caller once at a time.
type confirmations struct {
	mu     sync.Mutex
	of     map[string]confirmation
	asking singleflight.Group
}

// confirmation is the other members' answer about a caller. configuration is the index of this node's newest
// committed configuration at that time.
type confirmation struct {
	at            time.Time
	configuration uint64
	member        bool
}

// said returns the cached answer about a caller under a configuration, and whether it still holds.
func (v *confirmations) said(node string, configuration uint64) (member, good bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	word, given := v.of[node]
	goodFor := refusedFor
	if word.member {
		goodFor = confirmedFor
	}
	if !given || word.configuration != configuration || time.Since(word.at) >= goodFor {
		delete(v.of, node)
		return false, false
	}
	return word.member, true
}

// keep caches an answer.
func (v *confirmations) keep(node string, word confirmation) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.of) >= maxConfirmations {
		clear(v.of) // the members are asked again
	}
	v.of[node] = word
}

// admitMember accepts raft connections from members only: with TLS, every certificate of the CA could otherwise ask for votes. If this node
// does not know the caller, it asks the members that it knows, since its own configuration may be old.
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
		return nil // it waits to be added, and admitDisk asks the caller
	}
	known, _ := n.configured.newest()
	member, good := n.confirmations.said(caller.Node, known)
	if !good {
		asked, _, _ := n.confirmations.asking.Do(caller.Node, func() (any, error) {
			said := n.othersConfirm(servers, caller.Node, known)
			n.confirmations.keep(caller.Node, confirmation{at: time.Now(), configuration: known, member: said})
			return said, nil
		})
		member = asked == true
	}
	if !member {
		return errNoMember
	}
	return nil
}

// othersConfirm asks all other members at once whether a node is a member. It ignores members with an older configuration than this node's:
// they may not know of its removal.
func (n *Node) othersConfirm(servers []raft.Server, node string, known uint64) bool {
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
