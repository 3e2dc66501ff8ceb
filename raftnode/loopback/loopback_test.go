package loopback_test

import (
	"net"
	"testing"

	"github.com/quotad/quotad/raftnode/loopback"
)

// TestFree: what it returns can be listened at, again and again, and is never returned twice.
func TestFree(t *testing.T) {
	const calls, each = 20, 50
	seen := map[string]bool{}
	for range calls {
		addresses, err := loopback.Free(each)
		if err != nil || len(addresses) != each {
			t.Fatalf("%d addresses, %v", len(addresses), err)
		}
		for i, address := range addresses {
			if seen[address] {
				t.Fatalf("%s twice", address)
			}
			seen[address] = true
			listener, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				err = listener.Close()
			} else {
				t.Cleanup(func() { _ = listener.Close() })
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFreeGivesUp: more than there are.
func TestFreeGivesUp(t *testing.T) {
	if addresses, err := loopback.Free(16_000); err == nil {
		t.Errorf("%d addresses", len(addresses))
	}
}
