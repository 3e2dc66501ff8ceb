package loopback_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/quotad/quotad/raftnode/loopback"
)

// TestFree: each address accepts a listener, again and again, and is returned only once.
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

// TestFree_OtherProcess: while a process runs, no other gets its ports, even without a listener on them.
func TestFree_OtherProcess(t *testing.T) {
	const each = 500
	if os.Getenv("QUOTAD_TEST_PORTS") != "" {
		addresses, err := loopback.Free(each)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(t.Output(), "ports", strings.Join(addresses, " "))
		return
	}
	seen := map[string]bool{}
	addresses, err := loopback.Free(each)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		seen[address] = true
	}
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	other.Env = append(os.Environ(), "QUOTAD_TEST_PORTS=1")
	out, err := other.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	reported := 0
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != "ports" {
			continue
		}
		for _, address := range fields[1:] {
			reported++
			if seen[address] {
				t.Errorf("%s is given to two processes", address)
			}
		}
	}
	if reported != each {
		t.Errorf("the other process was given %d ports", reported)
	}
}

// TestFree_RefusesMoreThanThereAre: asks for more ports than exist.
func TestFree_RefusesMoreThanThereAre(t *testing.T) {
	if addresses, err := loopback.Free(16_000); err == nil {
		t.Errorf("%d addresses", len(addresses))
	}
}
