package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/integrations"
)

// maxManifestFile is one byte more than a manifest may have, so that the rule speaks.
const maxManifestFile = 256<<10 + 1

func (c *cli) manifestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manifest",
		Short: "Check manifests, and explain what they are held to",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return usagef("connect manifest --help lists the commands", "there is no such command%s", quoted(args[0]))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.manifestCheckCommand(), c.manifestRulesCommand(), c.manifestSchemaCommand())
	return cmd
}

// A checked is what was found in one file.
type checked struct {
	File   string  `json:"file"`
	OK     bool    `json:"ok"`
	ID     string  `json:"id,omitempty"`
	Faults []fault `json:"faults"`

	said string // what an ok line says
}

type fault struct {
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Pointer string `json:"pointer"`
	Rule    string `json:"rule"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func (c *cli) manifestCheckCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check FILE…",
		Short: "Tell everything that is wrong with manifests",
		Long: `Check tells everything that is wrong with each manifest, and where: the file, line and
column, the rule's id, and what would be right. It ends with 1 where it found something.
A schema.json is not a manifest and is passed over.`,
		Example: `  connect manifest check integrations/registry/*.json`,
		Args:    words(1, 1000, "connect manifest check FILE…"),
		RunE: func(_ *cobra.Command, files []string) error {
			var all []checked
			for _, file := range files {
				if filepath.Base(file) == "schema.json" {
					continue
				}
				if info, err := os.Stat(file); err == nil && info.IsDir() {
					return usagef("connect manifest check "+filepath.Join(file, "*.json"), "%s is a folder", file)
				}
				data, err := readFile(file, maxManifestFile)
				if errors.Is(err, errFileTooLarge) {
					data = make([]byte, maxManifestFile)
				} else if err != nil {
					return usagef("", "the file %s %w", file, err)
				}
				all = append(all, checkManifest(file, data))
			}
			ok := true
			for _, r := range all {
				ok = ok && r.OK
			}
			if err := c.printChecked(all, ok, asJSON); err != nil {
				return err
			}
			if !ok {
				return errFindings
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, `print {"ok", "files"} on one line`)
	return cmd
}

func checkManifest(file string, data []byte) checked {
	r := checked{File: file, Faults: []fault{}}
	m, err := integrations.Parse(data)
	var faults integrations.Faults
	if errors.As(err, &faults) {
		for _, f := range faults {
			r.Faults = append(r.Faults, fault{f.Line, f.Column, f.Pointer, f.Rule, f.Message, f.Mend})
		}
		return r
	}
	r.ID = m.ID
	if base := strings.TrimSuffix(filepath.Base(file), ".json"); base != m.ID {
		// A registry would refuse the file for its name.
		f := fault{Line: 1, Column: 1, Pointer: "/id", Rule: "load.name", Message: fmt.Sprintf("the file is not named %s.json", m.ID)}
		for _, rule := range integrations.Rules() {
			if rule.ID == f.Rule {
				f.Hint = rule.Mend
			}
		}
		r.Faults = append(r.Faults, f)
		return r
	}
	reads, writes := countOps(m)
	r.OK, r.said = true, fmt.Sprintf("%s %s, %d reads, %d writes", m.Name, m.Version, reads, writes)
	return r
}

func (c *cli) printChecked(all []checked, ok, asJSON bool) error {
	if asJSON {
		return writeJSON(c.out, struct {
			OK    bool      `json:"ok"`
			Files []checked `json:"files"`
		}{ok, all})
	}
	p := &page{w: c.out}
	for _, r := range all {
		if r.OK {
			p.line("%s: ok (%s)", r.File, r.said)
		}
		for _, f := range r.Faults {
			p.line("%s", integrations.Fault{File: r.File, Pointer: f.Pointer, Line: f.Line, Column: f.Column, Rule: f.Rule, Message: f.Message})
			if f.Hint != "" {
				p.line("  hint: %s", f.Hint)
			}
		}
	}
	return p.err
}

func (c *cli) manifestRulesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rules [ID]",
		Short: "Explain the rules that manifests are held to",
		Args:  words(0, 1, "connect manifest rules lists them"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var ids []string
			for _, r := range integrations.Rules() {
				ids = append(ids, r.ID)
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			p := &page{w: c.out}
			var rows [][2]string
			for _, r := range integrations.Rules() {
				if len(args) == 0 {
					rows = append(rows, [2]string{r.ID, r.Why})
				} else if r.ID == args[0] {
					p.para(r.ID, r.Why)
					p.para("What would be right", r.Mend)
					return p.err
				}
			}
			if len(args) == 1 {
				return usagef("connect manifest rules lists them", "there is no such rule")
			}
			p.rows(rows)
			return p.err
		},
	}
}

func (c *cli) manifestSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of manifests, for editors",
		Args:  words(0, 0, "connect manifest schema takes no words"),
		RunE: func(*cobra.Command, []string) error {
			_, err := c.out.Write(integrations.Schema())
			return err
		},
	}
}
