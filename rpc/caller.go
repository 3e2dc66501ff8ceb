package rpc

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// What the names of accounts begin with: the kind of caller.
const (
	tokenAccount   = "token:"
	addressAccount = "address:"
)

// budget returns the name of the account that a caller's budgets belong to: its token's, else its address's. Where it is an
// address's (sharesAddress), each holder there has an account of its own within it.
func (c *caller) budget() string { return c.account }

// sharesAddress tells whether the caller is known by nothing but its address, which many holders may share.
func (c *caller) sharesAddress() bool { return strings.HasPrefix(c.account, addressAccount) }

// operates tells whether a call with a verb is an operator's: it may use what is kept for operators. With tokens the token
// decides, whatever the call; without tokens everybody may do everything, so the call decides.
func (c *caller) operates(verb Verb) bool {
	if c.id == "" {
		return isOperators(verb)
	}
	return slices.ContainsFunc(c.verbs, isOperators)
}

// isOperators tells whether a verb is one of operators.
func isOperators(verb Verb) bool {
	return verb == VerbAdminQuota || verb == VerbAdminCluster || verb == VerbDebug
}

// at returns a caller without a token as one of an address's account.
func (c *caller) at(account string) *caller {
	at := *c
	at.account = account
	return &at
}

// callerAddress returns the account of the address from which a call came. Of a forwarded call it is the address that the
// forwarding node vouches for; a header that no member vouches for is ignored.
func (s *Server) callerAddress(ctx context.Context, header http.Header, peer string) string {
	from := accountOfAddress(peer)
	if proof, account, ok := strings.Cut(header.Get(HeaderCaller), " "); ok && isAddressAccount(account) &&
		s.node.VouchedBy(ctx, from, header.Get(HeaderForwarded), account, proof) {
		return account
	}
	return from
}

// maxAddressAccount is longer than any address is written.
const maxAddressAccount = 64

func isAddressAccount(account string) bool {
	return strings.HasPrefix(account, addressAccount) && len(account) <= maxAddressAccount
}

// wholeNetwork is how much of an IPv6 address tells networks apart: within it a machine takes what address it likes.
const wholeNetwork = 64

// accountOfAddress returns the account of a peer's host:port. Where no address can be read, as in calls within this
// process, all share one.
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
