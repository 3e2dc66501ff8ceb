package rpc

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Prefixes of account names, by kind of caller. Members have accounts only for their connections.
const (
	tokenAccount   = "token:"
	addressAccount = "address:"
	memberAccount  = "member:"
)

// budget returns the name of the account that pays for a caller: its token's, else its address's. Within an address's account
// (sharesAddress) each holder has an account of its own.
func (c *caller) budget() string { return c.account }

// sharesAddress tells whether only the address identifies the caller; many holders may share it.
func (c *caller) sharesAddress() bool { return strings.HasPrefix(c.account, addressAccount) }

// actsAsOperator tells whether a command with a verb counts as an operator's. With tokens, the token decides for all commands. Without
// tokens every caller may make every call, so the verb decides.
func (c *caller) actsAsOperator(verb Verb) bool {
	if c.id == "" {
		return isOperators(verb)
	}
	return slices.ContainsFunc(c.verbs, isOperators)
}

// isOperators tells whether a verb is an operator's.
func isOperators(verb Verb) bool {
	return verb == VerbAdminQuota || verb == VerbAdminCluster || verb == VerbDebug
}

// at returns a caller without a token, in the account of an address.
func (c *caller) at(account string) *caller {
	at := *c
	at.account = account
	return &at
}

// callerAddress returns the account of the address from which a call came. Of a forwarded call it is the address that the forwarding node
// attests; a header that no member attests is ignored.
func (s *Server) callerAddress(ctx context.Context, header http.Header, peer string) string {
	if statement, by := s.attested(ctx, header, peer); by != "" && isAddressAccount(statement) {
		return statement
	}
	return accountOfAddress(peer)
}

// attested returns the forwarding node's statement about a call and that node's id; no id: it is no member's.
func (s *Server) attested(ctx context.Context, header http.Header, peer string) (statement, by string) {
	proof, statement, ok := strings.Cut(header.Get(HeaderCaller), " ")
	id := header.Get(HeaderForwarded)
	if !ok || statement != tokenAccount && !isAddressAccount(statement) {
		return "", ""
	}
	if !s.node.AttestedBy(ctx, accountOfAddress(peer), id, statement, proof) {
		return "", ""
	}
	return statement, id
}

// maxAddressAccount bounds the name of an address's account, in bytes; every valid one is shorter.
const maxAddressAccount = 64

func isAddressAccount(account string) bool {
	return strings.HasPrefix(account, addressAccount) && len(account) <= maxAddressAccount
}

// wholeNetwork is the length in bits of the prefix that tells IPv6 networks apart: a machine can use any address in its network.
const wholeNetwork = 64

// accountOfAddress returns the account of a peer's host:port. Peers without a readable address, such as calls within this process, share
// one account.
func accountOfAddress(peer string) string {
	parsed, err := netip.ParseAddrPort(peer)
	if err != nil {
		return addressAccount + "unknown"
	}
	address := parsed.Addr().Unmap().WithZone("")
	if address.Is6() {
		if network, err := address.Prefix(wholeNetwork); err == nil {
			return addressAccount + network.String()
		}
	}
	return addressAccount + address.String()
}
