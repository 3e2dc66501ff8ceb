//go:build !unix

package authority

import "io/fs"

// readableByOthers cannot tell: an access list of the file decides, and a file inherits that of its folder.
func readableByOthers(fs.FileInfo) bool { return false }
