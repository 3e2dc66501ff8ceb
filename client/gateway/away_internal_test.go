package gateway

import (
	"errors"
	"fmt"
	"testing"

	"github.com/quotad/quotad/client"
)

// TestAwayRefusal_IsOneSentence: one sentence, without the client's own prefixes.
func TestAwayRefusal_IsOneSentence(t *testing.T) {
	c := &call{gateway: &Gateway{cluster: &nodes{addresses: []string{"a:1", "b:2"}}}}
	for _, of := range []struct {
		err  error
		want string
	}{
		{
			&client.UnknownOutcomeError{Err: errors.Join(client.ErrClusterAway, &client.UnreachableError{})},
			"quotad: no quotad node answers (); nothing was sent",
		},
		{
			&client.NotAcceptedError{Reason: client.ReasonNoLeader, Err: client.ErrClusterAway},
			"quotad: the cluster (a:1, b:2) did not serve the call: NO_LEADER; nothing was sent",
		},
		{fmt.Errorf("asking: %w", client.ErrClusterAway), "quotad: no quotad node answered in time (a:1, b:2); nothing was sent"},
	} {
		if got := c.awayRefusal(of.err).Message; got != of.want {
			t.Errorf("%v: %q, want %q", of.err, got, of.want)
		}
	}
}
