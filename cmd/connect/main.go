// Connect runs the operations of services that manifests describe, and checks manifests.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	c := &cli{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	os.Exit(c.main(ctx, os.Args[1:]))
}

// A cli is what the subcommands share: the process's own streams.
type cli struct {
	in       *os.File
	out, err io.Writer
}

// note writes one line beside the result.
func (c *cli) note(format string, args ...any) { fmt.Fprintf(c.err, format+"\n", args...) }

func (c *cli) main(ctx context.Context, args []string) int {
	root := c.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		c.report(cmd, err, slices.ContainsFunc(args, func(a string) bool { return a == "--json" || a == "--json=true" }))
	}
	return exitCode(err)
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "connect",
		Short: "Run the operations that services' manifests describe, and nothing else",
		Long: `Connect runs operations of services such as GitHub or Stripe. What may be asked, what
may flow back and what a person confirms is written in one manifest a service.

Begin with "connect demo", which needs no account, or "connect services".`,
		SilenceErrors: true, // printed by report, with hints
		SilenceUsage:  true,
		// One transposition is two edits.
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := "connect --help lists the commands"
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				hint = "did you mean " + strings.Join(near, " or ") + "?"
			}
			return usagef(hint, "there is no such command%s", quoted(args[0]))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		c.demoCommand(), c.servicesCommand(), c.showCommand(), c.opCommand(), c.addCommand(), c.listCommand(), c.removeCommand(), c.disconnectCommand(), c.exportCommand(), c.keyCommand(), c.manifestCommand(), c.brokerCommand(), c.instanceCommand(), c.sidecarCommand(), c.versionCommand(),
		&cobra.Command{
			Use:   "exit-codes",
			Short: "What the program's exit codes mean",
			Long:  exitCodesHelp(),
		},
	)
	return root
}

// words says how many words a command takes beside its flags.
func words(least, most int, hint string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usagef(hint, "this command is written: %s", cmd.UseLine())
		}
		return nil
	}
}
