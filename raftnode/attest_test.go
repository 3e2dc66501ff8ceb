package raftnode_test

import (
	"testing"
)

// TestAttestedBy_BelievesMembersOnly: a statement counts only with a proof of the named member. A restarted member, with another key, is
// believed again.
func TestAttestedBy_BelievesMembersOnly(t *testing.T) {
	c := newCluster(t, 3)
	const statement = "address:192.0.2.1"
	teller, judge := c.nodes[0], c.nodes[1]
	id := teller.ID()
	proof := teller.Attest(statement)
	eventually(t, "a member's own proof is believed",
		func() bool { return judge.AttestedBy(t.Context(), "address:192.0.2.9", id, statement, proof) })
	for name, wrong := range map[string][3]string{
		"another statement": {id, "address:192.0.2.2", proof},
		"another member":    {judge.ID(), statement, proof},
		"no member":         {"stranger", statement, proof},
		"nobody":            {"", statement, proof},
		"no proof":          {id, statement, ""},
		"a proof cut short": {id, statement, proof[1:]},
	} {
		if judge.AttestedBy(t.Context(), "address:192.0.2.9", wrong[0], wrong[1], wrong[2]) {
			t.Errorf("%s is believed", name)
		}
	}
	c.stop(0)
	c.start(0)
	eventually(t, "the key of a member that started again", func() bool {
		return judge.AttestedBy(t.Context(), "address:192.0.2.9", id, statement, c.nodes[0].Attest(statement))
	})
	if judge.AttestedBy(t.Context(), "address:192.0.2.9", id, statement, proof) {
		t.Error("a proof of the member's former life is believed")
	}
}

// TestAttestedBy_BelievesNoFormerMember: a removed member still has its key, but its statements no longer count.
func TestAttestedBy_BelievesNoFormerMember(t *testing.T) {
	c := newCluster(t, 3)
	const statement = "address:192.0.2.1"
	leader := c.leader()
	gone, judge := c.nodes[(leader+1)%3], c.nodes[leader]
	id, proof := gone.ID(), gone.Attest(statement)
	eventually(t, "a member's own proof is believed", func() bool { return judge.AttestedBy(t.Context(), statement, id, statement, proof) })
	c.remove(id)
	believed := func() bool { return judge.AttestedBy(t.Context(), statement, id, statement, proof) }
	if _, _, leads := judge.Leader(); leads && believed() {
		t.Error("it is believed after it was removed")
	}
	eventually(t, "where another node removed it, the judge learns of that", func() bool { return !believed() })
}
