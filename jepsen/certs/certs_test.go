package certs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// signer stands for "quotad cert": a generation's certificates and its CA bear the name of its folder.
const signer = `#!/bin/sh
for last; do :; done
mkdir -p "$last"
name=$(basename "$last")
case $2 in
init) printf '%s\n' "$name" > "$last/ca.pem" ;;
node) printf '%s\n' "$name" > "$last/$3.pem"; printf '%s\n' "$name" > "$last/$3-key.pem" ;;
esac
`

var errCutOff = errors.New("cut off")

// rotated is a set of three nodes, with the files that each of them has loaded.
type rotated struct {
	t    *testing.T
	set  *Set
	ids  []string
	pair map[string]string
	cas  map[string][]string
	// left is the number of reloads until the rotation is cut off.
	left int
}

func newRotated(t *testing.T) *rotated {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "signer")
	if err := os.WriteFile(binary, []byte(signer), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	set, err := New(t.Context(), binary, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &rotated{t: t, set: set, ids: []string{"n1", "n2", "n3"}, pair: map[string]string{}, cas: map[string][]string{}, left: 1 << 20}
	for _, id := range r.ids {
		if err := set.Add(t.Context(), id, "127.0.0.1"); err != nil {
			t.Fatal(err)
		}
		r.read(id)
	}
	return r
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(bytes.TrimSpace(text)))
}

func (r *rotated) read(id string) {
	r.t.Helper()
	r.pair[id] = lines(r.t, filepath.Join(r.set.live(id), certFile))[0]
	r.cas[id] = lines(r.t, filepath.Join(r.set.live(id), caFile))
}

// reload reads a node's files, and checks that all nodes and callers still accept each node's certificate.
func (r *rotated) reload(id string) error {
	if r.left--; r.left < 0 {
		return errCutOff
	}
	r.read(id)
	r.cas["callers"] = lines(r.t, r.set.Bundle())
	for shows, ca := range r.pair {
		for who, trusts := range r.cas {
			if !slices.Contains(trusts, ca) {
				r.t.Errorf("after %s read its files %s shows a certificate of %s, and %s trusts %v", id, shows, ca, who, trusts)
			}
		}
	}
	return nil
}

// TestFinish_CompletesAnyRotation: Finish completes a rotation that was cut off at any step, its own steps included, and at no step is a
// node refused.
func TestFinish_CompletesAnyRotation(t *testing.T) {
	for cut := range 9 {
		t.Run(fmt.Sprintf("cut off after %d reloads", cut), func(t *testing.T) {
			r := newRotated(t)
			for _, left := range []int{cut, cut / 2} {
				if _, err := r.set.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
				if r.left = left; !errors.Is(r.set.Finish(r.ids, r.reload), errCutOff) {
					t.Fatal("it was not cut off")
				}
			}
			r.left = 1 << 20
			if err := r.set.Finish(r.ids, r.reload); err != nil {
				t.Fatal(err)
			}
			for _, id := range r.ids {
				if r.pair[id] != "ca-2" || !slices.Equal(r.cas[id], []string{"ca-2"}) {
					t.Errorf("%s shows %s and trusts %v", id, r.pair[id], r.cas[id])
				}
			}
			if callers := lines(t, r.set.Bundle()); !slices.Equal(callers, []string{"ca-2"}) {
				t.Errorf("callers trust %v", callers)
			}
			r.left = 0
			if err := r.set.Finish(r.ids, r.reload); err != nil {
				t.Errorf("with nothing left to finish: %v", err)
			}
		})
	}
}
