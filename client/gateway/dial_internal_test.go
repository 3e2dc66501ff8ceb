package gateway

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
)

// answerNames serves one DNS connection on which each name has one IPv4 address.
func answerNames(server net.Conn, ip [4]byte) {
	defer func() { _ = server.Close() }()
	for {
		var length uint16
		if binary.Read(server, binary.BigEndian, &length) != nil {
			return
		}
		ask := make([]byte, length)
		if _, err := io.ReadFull(server, ask); err != nil {
			return
		}
		end := 12
		for ask[end] != 0 {
			end += int(ask[end]) + 1
		}
		question := ask[12 : end+5]
		answer := append([]byte{ask[0], ask[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
		if ask[end+2] == 1 { // A
			answer[7] = 1
			answer = append(append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4), ip[:]...)
		}
		_, _ = server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)) //nolint:gosec // it is short
	}
}

// TestUpstream_NoNameLeadsToMetadata: an upstream's transport refuses a name that resolves to one, and follows other names.
func TestUpstream_NoNameLeadsToMetadata(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	u, err := newUpstream("openai", config.Upstream{Dialect: "openai", Base: "http://provider.example"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	was := net.DefaultResolver
	defer func() { net.DefaultResolver = was }()
	for _, ip := range [][4]byte{{127, 0, 0, 1}, {169, 254, 169, 254}, {100, 100, 100, 200}} {
		net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go answerNames(far, ip)
			return near, nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		connection, err := u.own.DialContext(ctx, "tcp", "provider.example:"+port)
		cancel()
		if connection != nil {
			_ = connection.Close()
		}
		meant := ip[0] == 127
		if meant && err != nil || !meant && (err == nil || !strings.Contains(err.Error(), "metadata")) {
			t.Errorf("%v: got %v", ip, err)
		}
	}
}

// TestUpstream_ReachesProvidersAsBrowsersDo: through the proxy that the environment names, and over HTTP/2 where the provider has it.
func TestUpstream_ReachesProvidersAsBrowsersDo(t *testing.T) {
	provider := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	provider.EnableHTTP2 = true
	provider.StartTLS()
	defer provider.Close()
	u, err := newUpstream("openai", config.Upstream{Dialect: "openai", Base: provider.URL}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	if reflect.ValueOf(u.own.Proxy).Pointer() != reflect.ValueOf(http.ProxyFromEnvironment).Pointer() {
		t.Error("HTTPS_PROXY is ignored")
	}
	trusted, ok := provider.Client().Transport.(*http.Transport)
	if !ok {
		t.Fatal("the provider's client has another transport")
	}
	u.own.TLSClientConfig = &tls.Config{RootCAs: trusted.TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS12}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, provider.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := u.transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if seen, err := io.ReadAll(response.Body); err != nil || string(seen) != "HTTP/2.0" {
		t.Errorf("the provider saw %s, %v", seen, err)
	}
}

func TestIsMetadata(t *testing.T) {
	for address, want := range map[string]bool{
		"169.254.169.254": true, "169.254.170.2": true, "::ffff:169.254.169.254": true, "fe80::1%eth0": true, "fd00:ec2::254": true,
		"168.63.129.16": true, "10.0.0.1": false, "127.0.0.1": false, "::1": false, "fd00::1": false, "192.0.2.1": false,
	} {
		if got := isMetadata(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}

// TestModelLabels_AreBounded: the first models have their own labels, all others share one.
func TestModelLabels_AreBounded(t *testing.T) {
	var labels modelLabels
	for range 2 {
		for i := range maxModelLabels + 10 {
			model := fmt.Sprint("model-", i)
			want := model
			if i >= maxModelLabels {
				want = otherModel
			}
			if got := labels.label(model); got != want {
				t.Fatalf("%s has the label %s", model, got)
			}
		}
	}
}
