package raftnode

import (
	"runtime"
	"testing"
)

// TestSystemMemory_IsRead: on Linux the limit and the memory in use are known, and the use is below the limit.
func TestSystemMemory_IsRead(t *testing.T) {
	used, err := memoryInUse()
	if err != nil || used < 1<<20 {
		t.Fatalf("in use: %d %v", used, err)
	}
	limit, err := SystemMemoryLimit()
	if runtime.GOOS != "linux" {
		t.Skip("limits are read on Linux")
	}
	if err != nil || limit <= used {
		t.Errorf("of a limit of %d, %d are in use: %v", limit, used, err)
	}
}
