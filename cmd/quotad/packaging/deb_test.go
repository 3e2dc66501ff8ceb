package packaging

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// deb is the contents of a Debian package.
type deb struct {
	// control has the files for dpkg itself.
	control map[string]string
	// modes are the modes of the files that it installs.
	modes map[string]os.FileMode
	// root is the folder with the unpacked files.
	root string
}

// unpack reads the release's package for this machine's architecture, as dpkg would.
func unpack(t *testing.T) *deb {
	t.Helper()
	data, err := os.ReadFile(packagePath(t))
	if err != nil {
		t.Fatal(err)
	}
	members, err := archived(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(members["debian-binary"]); got != "2.0\n" {
		t.Fatalf("the package has format %q", got)
	}
	d := &deb{control: map[string]string{}, modes: map[string]os.FileMode{}, root: t.TempDir()}
	each(t, members["control.tar.gz"], func(header *tar.Header, body []byte) error {
		d.control[filepath.Base(header.Name)] = string(body)
		return nil
	})
	each(t, members["data.tar.gz"], func(header *tar.Header, body []byte) error {
		path := filepath.Join(d.root, filepath.FromSlash(header.Name))
		if header.Typeflag == tar.TypeDir {
			return os.MkdirAll(path, 0o750)
		}
		if header.Typeflag != tar.TypeReg {
			return fmt.Errorf("%s is no plain file", header.Name)
		}
		mode := os.FileMode(header.Mode)
		d.modes[strings.TrimPrefix(header.Name, ".")] = mode
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return err
		}
		return os.WriteFile(path, body, mode)
	})
	return d
}

// packagePath is the path of the package for this machine's architecture.
func packagePath(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(released(t), "quotad_*_"+runtime.GOARCH+".deb"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the release has the packages %v for %s, want one (%v)", found, runtime.GOARCH, err)
	}
	return found[0]
}

// archived returns the members of an ar archive.
func archived(data []byte) (map[string][]byte, error) {
	const magic, headerSize = "!<arch>\n", 60
	rest, found := bytes.CutPrefix(data, []byte(magic))
	if !found {
		return nil, errors.New("no ar archive")
	}
	members := map[string][]byte{}
	for len(rest) >= headerSize {
		name := strings.TrimRight(strings.TrimSpace(string(rest[:16])), "/")
		size, err := strconv.Atoi(strings.TrimSpace(string(rest[48:58])))
		rest = rest[headerSize:]
		if err != nil || size > len(rest) {
			return nil, fmt.Errorf("member %s is cut off: %w", name, err)
		}
		members[name] = rest[:size]
		rest = rest[min(size+size%2, len(rest)):]
	}
	return members, nil
}

// each calls do with every member of a compressed tar archive.
func each(t *testing.T, compressed []byte, do func(header *tar.Header, body []byte) error) {
	t.Helper()
	plain, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(plain)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(archive)
		if err == nil {
			err = do(header, body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestArchived_ReadsMembers: members of odd length are padded, and a truncated one is an error.
func TestArchived_ReadsMembers(t *testing.T) {
	member := func(name, body string) string { return fmt.Sprintf("%-16s%-32s%-10d`\n%s", name, "", len(body), body) }
	whole := "!<arch>\n" + member("one/", "odd") + "\n" + member("two", "even")
	members, err := archived([]byte(whole))
	if err != nil || len(members) != 2 || string(members["one"]) != "odd" || string(members["two"]) != "even" {
		t.Errorf("got %q, %v", members, err)
	}
	for name, broken := range map[string]string{"cut off": whole[:len(whole)-1], "another format": "PK" + whole} {
		if _, err := archived([]byte(broken)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
