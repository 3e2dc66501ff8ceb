// Package canary gives all calls of a run one token, and afterwards searches the run's files for it: no secret may be there.
package canary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// folder keeps the secret, in a run's folder.
const folder = "canary"

// name is the token's public part; the random part follows it.
const name = "canary"

// Nodes read tokensFile, callers send the content of secretFile.
const (
	tokensFile = "tokens.yaml"
	secretFile = "secret"
)

// New mints a token that allows everything, by the binary, and writes it and the nodes' token file into a run's folder.
func New(ctx context.Context, binary, run string) (secret, tokens string, err error) {
	dir := filepath.Join(run, folder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	secret, entry, err := mint(ctx, binary, name, "use,report,read,admin-quota,admin-cluster,debug")
	if err != nil {
		return "", "", err
	}
	tokens = filepath.Join(dir, tokensFile)
	return secret, tokens, errors.Join(os.WriteFile(tokens, []byte(entry), 0o600),
		os.WriteFile(filepath.Join(dir, secretFile), []byte(secret), 0o600))
}

// Another mints a token that allows less, and adds it to the nodes' token file. It is no canary.
func Another(ctx context.Context, binary, run, id, verbs string) (secret string, err error) {
	secret, entry, err := mint(ctx, binary, id, verbs)
	if err != nil {
		return "", err
	}
	_, entry, _ = strings.Cut(entry, "tokens:\n")
	file, err := os.OpenFile(filepath.Join(run, folder, tokensFile), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return "", err
	}
	_, err = file.WriteString(entry)
	return secret, errors.Join(err, file.Close())
}

// mint mints a token by the binary. entry is its text for a tokens file.
func mint(ctx context.Context, binary, id, verbs string) (secret, entry string, err error) {
	said, err := exec.CommandContext(ctx, binary, "token", "new", "--id", id, "--holder", "*", "--max-class", "critical", "--verbs",
		verbs).Output()
	if err != nil {
		return "", "", fmt.Errorf("mint a token: %w", err)
	}
	first, entry, cut := strings.Cut(string(said), "\n")
	_, secret, shown := strings.Cut(first, ": ")
	if !cut || !shown {
		return "", "", fmt.Errorf("mint a token: it said %q", said)
	}
	return secret, entry, nil
}

// Carry is an http.RoundTripper that adds a secret to each call.
type Carry struct {
	Secret string
	Next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c *Carry) RoundTrip(req *http.Request) (*http.Response, error) {
	if c.Secret != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+c.Secret)
	}
	return c.Next.RoundTrip(req)
}

// CloseIdleConnections closes idle connections.
func (c *Carry) CloseIdleConnections() {
	if next, ok := c.Next.(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

// Scan searches all files of a run's folder, the nodes' disks among them, for the secret. It returns the files that hold it, and how many
// files it read: 0 if the run had no secret.
func Scan(run string) (found []string, scanned int, err error) {
	secret, err := os.ReadFile(filepath.Join(run, folder, secretFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	_, unforeseeable, _ := strings.Cut(string(secret), name+"_")
	if len(unforeseeable) < 16 {
		return nil, 0, fmt.Errorf("the secret of %s is none", run)
	}
	err = filepath.WalkDir(run, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == folder:
			return filepath.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		scanned++
		has, err := contains(path, []byte(unforeseeable))
		if has {
			found = append(found, path)
		}
		return err
	})
	return found, scanned, err
}

// contains says whether a file contains a word.
func contains(path string, word []byte) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	buffer := make([]byte, 1<<20)
	kept := 0
	for {
		n, err := io.ReadFull(file, buffer[kept:])
		if bytes.Contains(buffer[:kept+n], word) {
			return true, nil
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = nil
			}
			return false, err
		}
		// A word may lie across two pieces.
		kept = copy(buffer, buffer[len(buffer)-len(word)+1:])
	}
}
