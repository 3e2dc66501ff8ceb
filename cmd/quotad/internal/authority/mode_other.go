//go:build !unix

package authority

import "io/fs"

// readableByOthers does not know: access is in a list that belongs to the file, and a file gets that of its folder.
func readableByOthers(fs.FileInfo) bool { return false }
