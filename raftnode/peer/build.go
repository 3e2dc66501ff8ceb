package peer

import "fmt"

// Build describes the binary that a node runs.
type Build struct {
	// Version is the binary's version, for people.
	Version string `json:"build,omitempty"`
	// Oldest and Newest bound the versions of log entries that the binary applies.
	Oldest uint32 `json:"oldest"`
	Newest uint32 `json:"newest"`
	// Level is the feature level of the node's state; 0: it has applied no entry yet.
	Level uint32 `json:"level"`
}

// Misfit says why nodes of two builds cannot be members of one cluster, or returns "". Builds misfit if they have no entry version in
// common, or if the state of one has a level that the other does not apply.
func (b Build) Misfit(other Build) string {
	for _, pair := range [][2]Build{{b, other}, {other, b}} {
		of, by := pair[0], pair[1]
		if of.Level != 0 && (of.Level < by.Oldest || of.Level > by.Newest) {
			return fmt.Sprintf("build %s is at feature level %d, build %s applies levels %d to %d",
				of.name(), of.Level, by.name(), by.Oldest, by.Newest)
		}
	}
	if b.Newest < other.Oldest || other.Newest < b.Oldest {
		return fmt.Sprintf("build %s applies levels %d to %d, build %s levels %d to %d",
			other.name(), other.Oldest, other.Newest, b.name(), b.Oldest, b.Newest)
	}
	return ""
}

func (b Build) name() string {
	if b.Version == "" {
		return "unknown"
	}
	return b.Version
}
