//go:build !unix

package keys

import "io/fs"

// openToOthers does not know: access is in a list that belongs to the file, and a file gets that of its folder.
func openToOthers(fs.FileInfo) bool { return false }
