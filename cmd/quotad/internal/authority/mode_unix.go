//go:build unix

package authority

import "io/fs"

// readableByOthers reports whether users other than a file's owner may read it.
func readableByOthers(info fs.FileInfo) bool { return info.Mode().Perm()&0o077 != 0 }
