package gateway

import (
	"context"
	"net"
)

// ReachNodesBy has a gateway reach its nodes by connections of a function.
func (o *Options) ReachNodesBy(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	o.dial = dial
}
