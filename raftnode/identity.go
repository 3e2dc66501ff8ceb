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

// vouchedFor is how long another member's word for a caller is good: the caller may have been removed since. The answer that no member
// vouches for it is good for refusedFor, since it may be added any moment. Without that, each connection of a caller with a certificate of
// the CA would cost each member a question. Once this node learns another configuration, neither is good any longer.
const (
	vouchedFor = 10 * time.Second
	refusedFor = time.Second
)

// maxVouched bounds what is remembered of callers: no honest cluster has as many nodes that others do not know.
const maxVouched = 256

// vouched remembers what the other members said of callers, and asks for each caller once at a time.
type vouched struct {
	mu     sync.Mutex
	of     map[string]vouch
	asking singleflight.Group
}

// vouch is the other members' word for a caller, given when this node's newest committed configuration had this index.
type vouch struct {
	at            time.Time
	configuration uint64
	member        bool
}

// said returns what was said of a caller under a configuration, as long as it is good.
func (v *vouched) said(node string, configuration uint64) (member, good bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	word, given := v.of[node]
	goodFor := refusedFor
	if word.member {
		goodFor = vouchedFor
	}
	if !given || word.configuration != configuration || time.Since(word.at) >= goodFor {
		delete(v.of, node)
		return false, false
	}
	return word.member, true
}

// keep remembers a word.
func (v *vouched) keep(node string, word vouch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.of) >= maxVouched {
		clear(v.of) // they are asked for again
	}
	v.of[node] = word
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
	member, good := n.vouched.said(caller.Node, known)
	if !good {
		asked, _, _ := n.vouched.asking.Do(caller.Node, func() (any, error) {
			said := n.othersVouch(servers, caller.Node, known)
			n.vouched.keep(caller.Node, vouch{at: time.Now(), configuration: known, member: said})
			return said, nil
		})
		member = asked == true
	}
	if !member {
		return errNoMember
	}
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
