package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version returns the module's version as the build knows it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return strings.Trim(info.Main.Version, "()")
	}
	return "devel"
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the program's version",
		Args:  words(0, 0, "connect version takes no words"),
		RunE: func(*cobra.Command, []string) error {
			line := fmt.Sprintf("connect %s %s %s/%s", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					switch {
					case s.Key == "vcs.revision":
						line += " " + s.Value
					case s.Key == "vcs.modified" && s.Value == "true":
						line += " modified"
					}
				}
			}
			_, err := fmt.Fprintln(c.out, line)
			return err
		},
	}
}
