//go:build !unix

package keys

import "io/fs"

// openToOthers cannot tell: access depends on the file's ACL, which it inherits from its folder.
func openToOthers(fs.FileInfo) bool { return false }
