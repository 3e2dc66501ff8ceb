package logstore

// UnsupportedError says that this system cannot hold a node's data.
type UnsupportedError struct{ System string }

// Error implements error.
func (e *UnsupportedError) Error() string {
	return "no node runs on " + e.System + ": quotad cannot make the names in a directory durable there," +
		" so that a power cut could undo what a node acknowledged"
}
