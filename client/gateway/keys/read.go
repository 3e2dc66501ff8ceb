// Package keys has the credentials that a gateway injects: it reads them, and selects the one for a call. Values never appear in
// errors, logs or metrics: a key is shown by its name.
package keys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/quotad/quotad/client/gateway/config"
)

// maxSecret bounds a secret's file, in bytes.
const maxSecret = 64 << 10

// Read returns the value of a source, without surrounding blanks.
func Read(s config.Source) (string, error) {
	if s.Env != "" {
		value := strings.TrimSpace(os.Getenv(s.Env))
		if value == "" {
			return "", fmt.Errorf("the environment variable %s is empty", s.Env)
		}
		return value, checkValue(value)
	}
	path, err := Path(s)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case info.Size() > maxSecret:
		return "", fmt.Errorf("%s is too large for a secret", path)
	case s.File != "" && openToOthers(info):
		return "", fmt.Errorf("other users can access %s (mode %#o): chmod o= %s", path, info.Mode().Perm(), path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	value := strings.TrimSpace(string(data))
	if value == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return value, checkValue(value)
}

// checkValue rejects values that no header can carry.
func checkValue(value string) error {
	if strings.ContainsAny(value, "\r\n\x00") {
		return errors.New("the value has more than one line; it must be the key only")
	}
	return nil
}

// Path returns the file of a source; an error: it has none.
func Path(s config.Source) (string, error) {
	switch {
	case s.File != "":
		if rest, home := strings.CutPrefix(s.File, "~/"); home {
			dir, err := os.UserHomeDir()
			if err != nil {
				return "", err
			}
			return filepath.Join(dir, rest), nil
		}
		return s.File, nil
	case s.Credential != "":
		dir := os.Getenv("CREDENTIALS_DIRECTORY")
		if dir == "" {
			return "", fmt.Errorf("credential %s: CREDENTIALS_DIRECTORY is not set: start the gateway from a systemd unit with LoadCredential=",
				s.Credential)
		}
		return filepath.Join(dir, s.Credential), nil
	}
	return "", fs.ErrNotExist
}
