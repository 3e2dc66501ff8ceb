package gateway

import (
	"context"
	"net"
)

// ReachNodesBy sets the function that dials the nodes.
func (o *Options) ReachNodesBy(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	o.dial = dial
}
