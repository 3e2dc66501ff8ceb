package config

import (
	"fmt"
	"net"
)

// Insecurity is a port that accepts anyone who reaches it from beyond this machine.
type Insecurity struct {
	// Key is the setting that allows it, Allowed whether it does.
	Key     string
	Allowed bool
	// Message says what the port lacks, and what follows from that.
	Message string
}

// Insecurities lists what the ports of a configuration lack beyond loopback: on the port for peers TLS, on the API TLS and tokens.
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

// Loopback tells whether an address is reached from this machine only.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
