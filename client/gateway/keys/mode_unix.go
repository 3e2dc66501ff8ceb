//go:build unix

package keys

import "io/fs"

// openToOthers reports whether users that are neither a file's owner nor in its group can access it.
func openToOthers(info fs.FileInfo) bool { return info.Mode().Perm()&0o007 != 0 }
