package ledger

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

const (
	// MaxMembers bounds the members of a pool: each of them is examined for each Reserve of it.
	MaxMembers    = 32
	maxMemberName = 64
)

// newPoolRule compiles the definition of a pool at a feature level, or returns why it is invalid there.
func newPoolRule(def *logpb.Quota, level uint32) (Rule, *logpb.Failure) {
	members := def.GetPool().GetMembers()
	if level < levels.Pools {
		return Rule{}, Impossible(def, "pools need newer nodes", "upgrade every node first")
	}
	if len(members) < 1 || len(members) > MaxMembers {
		return Rule{}, Impossible(def, fmt.Sprintf("a pool of %d members", len(members)), fmt.Sprintf("a pool has 1 to %d members", MaxMembers))
	}
	if !proto.Equal(def, &logpb.Quota{Name: def.Name, Note: def.Note, Rule: def.Rule}) {
		return Rule{}, Impossible(def, "a pool has nothing but its members and a note",
			"headroom, parent, policy and the rest belong to its members' quotas")
	}
	for i, member := range members {
		if !ValidName(member.Name) || len(member.Name) > maxMemberName {
			return Rule{}, Impossible(def, fmt.Sprintf("%q cannot be the name of a member", member.Name),
				"letters, digits and . _ - / @ :, such as key-1")
		}
		for _, other := range members[:i] {
			if other.Name == member.Name || other.Quota == member.Quota {
				return Rule{}, Impossible(def, fmt.Sprintf("members %q and %q have one name, or one quota", other.Name, member.Name),
					"each has its own")
			}
		}
	}
	return Rule{Kind: KindPool}, nil
}

// MaxNameLength is the longest name of a quota or a workflow, in bytes.
const MaxNameLength = 200

// ValidName reports whether a name is valid for a quota or a workflow.
func ValidName(name string) bool {
	valid := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/@:", r)
	}
	return name != "" && len(name) <= MaxNameLength && !strings.HasPrefix(name, "/") && !strings.HasSuffix(name, "/") &&
		!strings.ContainsFunc(name, func(r rune) bool { return !valid(r) })
}
