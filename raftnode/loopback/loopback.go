// Package loopback finds addresses for nodes that all run on this machine.
package loopback

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports are drawn from below those that systems hand to whoever connects or listens at port 0 (Linux from 32768, others
// from 49152): a node that was stopped comes back to its own.
const (
	lowest  = 15_000
	highest = 30_000
)

var (
	mu    sync.Mutex
	given = map[string]bool{}
)

// Free returns n addresses of loopback at which nobody listens and none of which it returned before.
func Free(n int) ([]string, error) {
	mu.Lock()
	defer mu.Unlock()
	var addresses []string
	for _, port := range rand.Perm(highest - lowest) {
		if len(addresses) == n {
			break
		}
		address := fmt.Sprintf("127.0.0.1:%d", lowest+port)
		if given[address] {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
		if err != nil {
			continue // somebody has it
		}
		if err := listener.Close(); err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	if len(addresses) < n {
		return nil, fmt.Errorf("of the ports from %d to %d of 127.0.0.1, %d are free and not in use by this process; %d are needed",
			lowest, highest-1, len(addresses), n)
	}
	for _, address := range addresses {
		given[address] = true
	}
	return addresses, nil
}
