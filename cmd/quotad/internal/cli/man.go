package cli

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes the manual pages of the packages.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Hidden: true, Short: "Write a manual page for each command into a folder", Args: arguments("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // manual pages are for everybody
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // its date would be the day of the build
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "quotad " + version, Manual: "quotad"}, args[0])
		},
	}
}
