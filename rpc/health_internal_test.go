package rpc

import (
	"testing"
	"time"

	"github.com/quotad/quotad/raftnode"
)

// TestHealth_IsCheckedOnceASecond: a request within a second of a check, or during one, gets the last result. Only a request without any
// checks.
func TestHealth_IsCheckedOnceASecond(t *testing.T) {
	var h health
	if _, known := h.known(); known {
		t.Error("before the first check its result is known")
	}
	h.last, h.at = []raftnode.Check{{Name: "first", OK: true}}, time.Now().Add(time.Hour) // the test may be slow
	h.observed()
	if last, known := h.known(); !known || len(last) != 1 {
		t.Errorf("within a second: %v, known %t", last, known)
	}
	h.at = time.Now().Add(-healthEvery)
	if _, known := h.known(); known {
		t.Error("after a second nobody checks again")
	}
	if last, known := h.known(); !known || len(last) != 1 {
		t.Errorf("during a check: %v, known %t", last, known)
	}
	h.observed()
	if _, known := h.known(); known {
		t.Error("a check that ended without a result is not repeated")
	}
}
