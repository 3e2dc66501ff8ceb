package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptMode checks a file's permissions: mode OCTAL FILE.
func scriptMode(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "mode OCTAL FILE")
	info, err := os.Stat(ts.MkAbs(args[1]))
	ts.Check(err)
	if mode := fmt.Sprintf("%o", info.Mode().Perm()); mode != args[0] {
		ts.Fatalf("%s has mode %s, not %s", args[1], mode, args[0])
	}
}

// scriptGlobGone checks that no file matches a pattern: glob-gone PATTERN.
func scriptGlobGone(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "glob-gone PATTERN")
	found, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(found) > 0 {
		ts.Fatalf("still there: %v", found)
	}
}

// scriptDamage flips a bit in the middle of a file, or of the largest file below a folder: damage PATH.
func scriptDamage(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "damage PATH")
	var path string
	var size int64
	ts.Check(filepath.WalkDir(ts.MkAbs(args[0]), func(p string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Size() > size {
			path, size = p, info.Size()
		}
		return err
	}))
	if path == "" {
		ts.Fatalf("%s holds no file", args[0])
	}
	data, err := os.ReadFile(path)
	ts.Check(err)
	data[len(data)/2] ^= 1
	ts.Check(os.WriteFile(path, data, 0o600))
}

// scriptSecret writes a token to a file: secret FILE TOKEN.
func scriptSecret(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "secret FILE TOKEN")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(args[1]+"\n"), 0o600))
}

// scriptTokenFile writes a tokens_file: the stanza that the last `token new` printed (or none), and an operator's token by
// its hash: tokenfile FILE stdout|nothing ID SHA256.
func scriptTokenFile(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 4, "tokenfile FILE stdout|nothing ID SHA256")
	content := "tokens:\n"
	if args[1] == "stdout" {
		_, stanza, found := strings.Cut(ts.ReadFile("stdout"), "tokens:\n")
		if !found {
			ts.Fatalf("the last command printed no stanza")
		}
		content += stanza
	}
	content += fmt.Sprintf("  - {id: %s, sha256: %s, holder: '*', max_class: critical, verbs: [use, read, admin-quota, admin-cluster]}\n",
		args[2], args[3])
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(content), 0o600))
}
