//go:build !unix

package raftnode

import "os"

// killSelf ends this process. No node runs here.
func killSelf() { os.Exit(1) }
