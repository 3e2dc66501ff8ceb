package rpc_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestOps_AnswersWhileTheAPIIsFlooded: while all calls of the API port are taken and silent connections are open there, the operators'
// port answers health and an operator's command. It serves no calls of holders, and profiles only to tokens with the verb debug.
func TestOps_AnswersWhileTheAPIIsFlooded(t *testing.T) {
	n, secrets := guarded(t, func(c *rpc.Config) { c.MaxInFlight = 32 })
	listener, err := rpc.Listen("127.0.0.1:0", rpc.DefaultMaxOpsConnections)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewHTTPServer(n.server.OpsHandler(true), nil, hclog.NewNullLogger())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	url := "http://" + listener.Addr().String()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, name := range []string{"hostile", "other"} {
		api, _ := apisAs(t, n.url, secrets[name])
		for i := range 50 {
			go func() {
				_, _ = api.Reserve(ctx, &quotav1.ReserveRequest{
					Holder: fmt.Sprint(name, i), Items: []*quotav1.Item{{Quota: "s"}}, Wait: durationpb.New(time.Minute),
				})
			}()
		}
	}
	for range 300 {
		silent, err := net.Dial("tcp", n.config.APIAddress)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = silent.Close() })
	}
	if status, body := get(t, url+"/livez"); status != http.StatusOK {
		t.Errorf("alive: %d %s", status, body)
	}
	_, operator := apisAs(t, url, secrets["operator"])
	for range 10 {
		if _, err := operator.OverrideQuota(ctx, &quotav1.OverrideQuotaRequest{
			Name: "t/core", Limit: new(int64(0)), Duration: durationpb.New(time.Minute),
		}); err != nil {
			t.Fatal(err)
		}
	}
	if status, _ := post(t, url, reservePath, `{}`, "Authorization", "Bearer "+secrets["hostile"]); status != http.StatusNotFound {
		t.Errorf("a Reserve: %d", status)
	}
	if status, _ := get(t, url+"/debug/pprof/cmdline", "Authorization", "Bearer "+secrets["operator"]); status != http.StatusForbidden {
		t.Errorf("a profile without the verb debug: %d", status)
	}
	if status, _ := get(t, n.url+"/debug/pprof/cmdline"); status != http.StatusNotFound {
		t.Errorf("a profile on the API port: %d", status)
	}
}

// TestOps_WatchersLeaveRoom: watchers of health from many addresses, each on a connection of its own, leave room for single requests.
func TestOps_WatchersLeaveRoom(t *testing.T) {
	n, _ := guarded(t, func(*rpc.Config) {})
	listener, err := rpc.Listen("127.0.0.1:0", rpc.DefaultMaxOpsConnections)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewHTTPServer(n.server.OpsHandler(false), nil, hclog.NewNullLogger())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	url := "http://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	watching := 0
	for i := range rpc.DefaultMaxOpsConnections / 4 {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i))}}
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		transport := &http.Transport{Protocols: protocols, DialContext: dialer.DialContext}
		t.Cleanup(transport.CloseIdleConnections)
		stream, err := connect.NewClient[emptypb.Empty, emptypb.Empty](&http.Client{Transport: transport}, url+"/grpc.health.v1.Health/Watch",
			connect.WithGRPC()).
			CallServerStream(ctx, connect.NewRequest(&emptypb.Empty{}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stream.Close() })
		if stream.Receive() {
			watching++
		}
	}
	if watching == 0 || watching > rpc.DefaultMaxOpsConnections/5 {
		t.Errorf("%d watch", watching)
	}
	for range 3 {
		fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if status := sendForm(t, fresh, http.MethodGet, url+"/livez", form{}, false, nil); status != http.StatusOK {
			t.Errorf("among watchers: %d", status)
		}
	}
}
