package config

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
)

// complete derives unset values: times from the profile, advertised addresses from listening addresses, and the peer list
// of a single node.
func (l *loader) complete() {
	c := &l.loaded.Config
	times := profiles[c.Profile]
	for _, fill := range []struct {
		key   string
		field *time.Duration
		from  time.Duration
	}{
		{"raft.heartbeat", &c.Times.Heartbeat, times.Heartbeat},
		{"raft.election", &c.Times.Election, times.Election},
		{"raft.lease", &c.Times.Lease, times.Lease},
	} {
		if *fill.field == 0 {
			*fill.field = fill.from
			l.derived(fill.key, strictyaml.FormatDuration(fill.from), "profile "+c.Profile)
		}
	}
	var own Peer
	if i := slices.IndexFunc(c.Peers, func(p Peer) bool { return p.ID == c.NodeID }); i >= 0 {
		own = c.Peers[i]
	}
	l.advertise("api", &c.API, own.API)
	l.advertise("raft", &c.Raft, own.Raft)
	if len(c.Peers) == 0 && !c.Join {
		c.Peers = []Peer{{ID: c.NodeID, Raft: c.Raft.Advertise, API: c.API.Advertise}}
		l.derived("peers", formatPeers(c.Peers), "this node alone")
	}
}

// advertise fills an unset advertised address: from the list of peers, or else from the listening address.
func (l *loader) advertise(name string, listener *Listener, listed string) {
	switch {
	case listener.Advertise != "":
	case listed != "":
		listener.Advertise = listed
		l.derived(name+".advertise", listed, "peers")
	default:
		listener.Advertise = listener.Listen
		l.derived(name+".advertise", listener.Listen, name+".listen")
	}
}

func (l *loader) derived(key, text, source string) {
	value := l.value(key)
	value.Text, value.Source = text, source
}

var nodeID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// validate checks rules that involve several settings.
func (l *loader) validate() []error {
	c := &l.loaded.Config
	var mistakes []error
	wrong := func(key, format string, values ...any) {
		mistakes = append(mistakes, fmt.Errorf("%s (%s): %s", key, l.value(key).Source, fmt.Sprintf(format, values...)))
	}
	if !nodeID.MatchString(c.NodeID) {
		wrong("node_id", "%q must be 1 to 64 letters, digits and . _ -", c.NodeID)
	}
	if c.DataDir == "" {
		wrong("data_dir", "must not be empty")
	}
	for _, listener := range []struct{ key, address string }{
		{"api.advertise", c.API.Advertise}, {"raft.advertise", c.Raft.Advertise},
	} {
		if unreachable(listener.address) && len(c.Peers) != 1 || wildcard(listener.address) {
			wrong(listener.key, "nobody can call %s; set it to the address under which the others reach this node", listener.address)
		}
	}
	if c.Ops.Pprof && c.Ops.Listen == "" {
		wrong("ops.pprof", "needs ops.listen")
	}
	validateTLS(c, wrong)
	for _, port := range c.Insecurities() {
		if !port.Allowed {
			wrong(port.Key, "%s; set it up (quotad cert makes certificates, quotad token tokens), or allow it with %s: true", port.Message, port.Key)
		}
	}
	validateTimes(c, wrong)
	validatePeers(c, wrong)
	if c.Disk.StopBelow > c.Disk.RefuseBelow {
		wrong("disk.stop_below", "must not be above disk.refuse_below: grants are refused before the node stops")
	}
	if c.TestingRecord != "" && !c.Testing {
		wrong("testing_record", "needs testing")
	}
	return mistakes
}

func validateTLS(c *Config, wrong func(key, format string, values ...any)) {
	if (c.API.TLS.Cert == "") != (c.API.TLS.Key == "") {
		wrong("api.tls_cert", "api.tls_cert and api.tls_key belong together: set both or none")
	}
	if c.API.TLS.CA != "" && c.API.TLS.Cert == "" {
		wrong("api.tls_client_ca", "needs api.tls_cert and api.tls_key")
	}
	if c.API.TLS.PeerCA != "" && c.API.TLS.Cert == "" {
		wrong("api.tls_ca", "needs api.tls_cert and api.tls_key")
	}
	set := 0
	for _, path := range []string{c.Raft.TLS.Cert, c.Raft.TLS.Key, c.Raft.TLS.CA} {
		if path != "" {
			set++
		}
	}
	if len(c.RaftNames) > 0 && set == 0 {
		wrong("raft.tls_names", "needs raft.tls_cert, raft.tls_key and raft.tls_ca")
	}
	if set != 0 && set != 3 {
		wrong("raft.tls_cert", "raft.tls_cert, raft.tls_key and raft.tls_ca belong together: nodes verify each other both ways")
	}
}

func validateTimes(c *Config, wrong func(key, format string, values ...any)) {
	const shortest = 5 * time.Millisecond // the minimum of hashicorp/raft
	if c.Times.Lease < shortest {
		wrong("raft.lease", "is %s; the least is %s", c.Times.Lease, shortest)
	}
	if c.Times.Lease > c.Times.Heartbeat {
		wrong("raft.lease", "is %s; it must not be above raft.heartbeat (%s), or two leaders could answer", c.Times.Lease, c.Times.Heartbeat)
	}
	if c.Times.Election < c.Times.Heartbeat {
		wrong("raft.election", "is %s; it must not be below raft.heartbeat (%s)", c.Times.Election, c.Times.Heartbeat)
	}
}

func validatePeers(c *Config, wrong func(key, format string, values ...any)) {
	if c.Join && len(c.Peers) > 0 {
		wrong("join", "a node that joins forms no cluster: remove peers")
		return
	}
	if c.Join {
		return
	}
	ids, addresses := map[string]bool{}, map[string]string{}
	for _, peer := range c.Peers {
		if ids[peer.ID] {
			wrong("peers", "duplicate id %s", peer.ID)
		}
		ids[peer.ID] = true
		for _, at := range []struct{ what, address string }{{"raft address", peer.Raft}, {"api address", peer.API}} {
			other, taken := addresses[at.address]
			switch {
			case unreachable(at.address): // validate reports a wildcard; port 0 gives each a different free port
			case taken && other == at.what:
				wrong("peers", "duplicate %s %s", at.what, at.address)
			case taken:
				wrong("peers", "%s is a raft address and an api address: each needs a port of its own", at.address)
			}
			addresses[at.address] = at.what
		}
	}
	self := slices.IndexFunc(c.Peers, func(p Peer) bool { return p.ID == c.NodeID })
	if self < 0 {
		wrong("peers", "this node (node_id %s) is not in the list; the list names every node and is the same on each", c.NodeID)
		return
	}
	if own := c.Peers[self]; own.Raft != c.Raft.Advertise {
		wrong("peers", "the list says that %s has the Raft address %s, raft.advertise says %s", own.ID, own.Raft, c.Raft.Advertise)
	} else if own.API != c.API.Advertise {
		wrong("peers", "the list says that %s has the API address %s, api.advertise says %s", own.ID, own.API, c.API.Advertise)
	}
}

// unreachable reports whether an address means "all interfaces" or "any free port", so that nobody can call it from
// outside.
func unreachable(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && (port == "0" || wildcard(address))
}

// wildcard reports whether an address means "all interfaces": a listener accepts it, but nobody can call it.
func wildcard(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}
