package config

import (
	"fmt"
	"net"
)

// Insecurity is a port that accepts anyone who reaches it from another machine.
type Insecurity struct {
	// Key is the setting that allows it; Allowed says whether that setting is true.
	Key     string
	Allowed bool
	// Message names the missing protection and its consequence.
	Message string
}

// Insecurities lists the missing protection of ports beyond loopback: TLS on the Raft port; TLS and tokens on the API and
// operators' ports.
func (c Config) Insecurities() []Insecurity {
	var all []Insecurity
	if address := c.Raft.Listen; !Loopback(address) && !c.Raft.TLS.Enabled() {
		all = append(all, Insecurity{"raft.insecure", c.Raft.Insecure, fmt.Sprintf(
			"raft.listen %s is beyond loopback and raft.tls_cert is not set: every program that reaches it can replace the state", address)})
	}
	for _, port := range []struct{ key, address string }{{"api.listen", c.API.Listen}, {"ops.listen", c.Ops.Listen}} {
		if port.address == "" || Loopback(port.address) {
			continue
		}
		if !c.API.TLS.Enabled() {
			all = append(all, Insecurity{"api.insecure", c.API.Insecure, fmt.Sprintf(
				"%s %s is beyond loopback and api.tls_cert is not set: calls and tokens pass in clear text", port.key, port.address)})
		}
		if c.TokensFile == "" {
			all = append(all, Insecurity{"api.insecure", c.API.Insecure, fmt.Sprintf(
				"%s %s is beyond loopback and tokens_file is not set: every program that reaches it may act for every holder and as operator", port.key,
				port.address)})
		}
	}
	return all
}

// Loopback reports whether an address can be reached from this machine only.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
