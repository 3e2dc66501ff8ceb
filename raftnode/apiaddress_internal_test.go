package raftnode

import (
	"maps"
	"strings"
	"testing"
)

// TestAPIAddresses_Changed: a changed address is recorded unless another member has it, by its own report or, before it reported one, by
// the state.
func TestAPIAddresses_Changed(t *testing.T) {
	recorded := map[string]string{"a": "h:1", "b": "h:2", "c": "h:3"}
	for name, c := range map[string]struct{ reported, want map[string]string }{
		"nothing is known":           {nil, nil},
		"nothing changed":            {map[string]string{"a": "h:1", "b": "h:2"}, nil},
		"one changed":                {map[string]string{"a": "h:9", "b": "h:2"}, map[string]string{"a": "h:9"}},
		"two swapped theirs":         {map[string]string{"a": "h:2", "b": "h:1"}, map[string]string{"a": "h:2", "b": "h:1"}},
		"another member has it":      {map[string]string{"a": "h:2", "b": "h:2"}, nil},
		"the state has it elsewhere": {map[string]string{"a": "h:3"}, nil},
		"two took the same":          {map[string]string{"a": "h:9", "b": "h:9"}, nil},
		"one that is no member":      {map[string]string{"d": "h:9"}, nil},
		"malformed":                  {map[string]string{"a": "h", "b": ":", "c": strings.Repeat("h", maxAPIAddress) + ":1"}, nil},
		"none":                       {map[string]string{"a": ""}, nil},
	} {
		var known apiAddresses
		for node, address := range c.reported {
			known.learn(node, address)
		}
		got := map[string]string{}
		for _, command := range known.changed(recorded) {
			got[command.GetPutMember().Id] = command.GetPutMember().ApiAddress
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
