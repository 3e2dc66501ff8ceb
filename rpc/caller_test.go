package rpc

import "testing"

// TestAccountOfAddress_IsAMachines: an account tells machines apart, but not one machine's connections or the addresses that it can
// choose.
func TestAccountOfAddress_IsAMachines(t *testing.T) {
	for peer, want := range map[string]string{
		"192.0.2.7:4711":            "address:192.0.2.7",
		"[::ffff:192.0.2.7]:4711":   "address:192.0.2.7",
		"[2001:db8:1:2:3:4:5:6]:99": "address:2001:db8:1:2::/64",
		"[2001:db8:1:2::1]:98":      "address:2001:db8:1:2::/64",
		"[2001:db8:1:3::1]:98":      "address:2001:db8:1:3::/64",
		"[fe80::1%eth0]:98":         "address:fe80::/64",
		"":                          "address:unknown",
		"pipe":                      "address:unknown",
	} {
		if got := accountOfAddress(peer); got != want || !isAddressAccount(got) {
			t.Errorf("%q: %s, want %s", peer, got, want)
		}
	}
}

// TestActsAsOperator_ByTokenOrByCall: a token is an operator's by its verbs; without tokens, the call decides.
func TestActsAsOperator_ByTokenOrByCall(t *testing.T) {
	user := &caller{id: "agent", verbs: []Verb{VerbUse, VerbReport, VerbRead}}
	operator := &caller{id: "ops", verbs: []Verb{VerbUse, VerbAdminQuota}}
	nobody := anybody.at("address:192.0.2.1")
	for _, c := range []struct {
		who  *caller
		verb Verb
		want bool
	}{
		{user, VerbUse, false},
		{user, VerbAdminQuota, false}, // refused before it matters
		{operator, VerbUse, true},
		{operator, VerbAdminQuota, true},
		{nobody, VerbUse, false},
		{nobody, VerbReport, false},
		{nobody, VerbRead, false},
		{nobody, verbOfEach, false},
		{nobody, VerbAdminQuota, true},
		{nobody, VerbAdminCluster, true},
		{nobody, VerbDebug, true},
	} {
		if got := c.who.actsAsOperator(c.verb); got != c.want {
			t.Errorf("%q with %q: %t", c.who.id, c.verb, got)
		}
	}
}
