package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// metadata are addresses at which clouds serve credentials to the machine, in addition to the link-local ones: AWS, Google, Alibaba,
// Azure and Oracle.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("100.100.100.200"),
	netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192"),
}

// isMetadata reports whether an address is link-local, or serves a cloud's metadata.
func isMetadata(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return ip.IsLinkLocalUnicast() || slices.Contains(metadata, ip)
}

// dialUpstream connects to a provider. It refuses a name that resolves to a metadata address: the owner of the name would read the
// machine's credentials through the gateway. A literal address in the configuration is intended.
func dialUpstream(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err != nil {
		dialer.Control = func(_, to string, _ syscall.RawConn) error {
			if at, err := netip.ParseAddrPort(to); err == nil && isMetadata(at.Addr()) {
				return fmt.Errorf("%s leads to %s, a link-local or metadata address: write the address in base if it is meant", host, at.Addr())
			}
			return nil
		}
	}
	return dialer.DialContext(ctx, network, address)
}
