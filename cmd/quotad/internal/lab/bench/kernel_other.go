//go:build !unix

package bench

// kernel is unknown here.
func kernel() string { return "" }

// flushDisks does nothing: no cluster is measured here.
func flushDisks() {}
