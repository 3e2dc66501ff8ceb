package canary

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

const secret = "qtd_canary_3Qm5ZqJ9yWn0Yw8b2u7d"

// TestScan_FindsSecretAnywhere: at the beginning of a file, at its end, and across two pieces of a read.
func TestScan_FindsSecretAnywhere(t *testing.T) {
	run := t.TempDir()
	write := func(name string, data []byte) {
		t.Helper()
		path := filepath.Join(run, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	filler := bytes.Repeat([]byte("qtd_canary_"), 200_000)
	word := []byte(secret)[len("qtd_canary_"):]
	write("canary/secret", []byte(secret))
	write("clean.log", filler)
	for _, at := range []int{0, 1<<20 - 3, 1<<20 - len(word) + 1, 2<<20 - 2*len(word), len(filler)} {
		spoiled := filepath.Join("data", "raft.db")
		write(spoiled, append(append(append([]byte(nil), filler[:at]...), word...), filler[at:]...))
		found, scanned, err := Scan(run)
		if err != nil || scanned != 2 || len(found) != 1 || found[0] != filepath.Join(run, spoiled) {
			t.Errorf("at %d: %v, %d files, %v", at, found, scanned, err)
		}
	}
	write("data/raft.db", nil)
	if found, _, err := Scan(run); err != nil || len(found) > 0 {
		t.Errorf("%v %v", found, err)
	}
}

func TestCarry_AddsSecretToCall(t *testing.T) {
	var heard string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { heard = r.Header.Get("Authorization") }))
	defer server.Close()
	caller := &http.Client{Transport: &Carry{Secret: secret, Next: http.DefaultTransport}}
	response, err := caller.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if heard != "Bearer "+secret {
		t.Errorf("the call carried %q", heard)
	}
}
