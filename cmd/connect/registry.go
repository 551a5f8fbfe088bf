package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/integrations"
)

// registryFlag names an author's folder instead of the registry that is built in.
type registryFlag struct{ dir string }

func (f *registryFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "registry", "", "use the manifests in `DIR`, not those that are built in")
}

func (f *registryFlag) load(c *cli) (*integrations.Registry, error) {
	if f.dir == "" {
		return integrations.Default()
	}
	reg, err := loadFolder(f.dir)
	if err != nil {
		return nil, err
	}
	c.note("note: the manifests in %s are used, not those that are built in", f.dir)
	return reg, nil
}

// loadFolder loads a folder of manifests; its faults name the files as they stand there.
func loadFolder(dir string) (*integrations.Registry, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, usagef("", "the folder %w", withoutPath(err))
	} else if !info.IsDir() {
		return nil, usagef("connect manifest check takes files", "that is a file, not a folder of manifests")
	}
	reg, err := integrations.Load(os.DirFS(dir))
	var faults integrations.Faults
	if errors.As(err, &faults) {
		placed := append(integrations.Faults(nil), faults...)
		for i := range placed {
			placed[i].File = filepath.Join(dir, placed[i].File)
		}
		return nil, placed
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return nil, usagef("", "the folder's file %s cannot be read: %w", pe.Path, pe.Err)
	}
	return reg, err
}

// service returns the service called id.
func service(reg *integrations.Registry, id string) (*integrations.Manifest, error) {
	if m := reg.Get(id); m != nil {
		return m, nil
	}
	var ids []string
	for _, m := range reg.All() {
		ids = append(ids, m.ID)
	}
	return nil, usagef("the services are: "+strings.Join(ids, ", "), "there is no such service%s", quoted(id))
}

// operation returns the operation called name.
func operation(m *integrations.Manifest, name string) (*integrations.Op, error) {
	if o := m.Op(name); o != nil {
		return o, nil
	}
	hint := ""
	// Bind knows which name is near.
	var refused *integrations.RefusedError
	if _, err := m.Bind(name, nil, nil); errors.As(err, &refused) {
		hint = refused.Hint
	}
	return nil, usagef(hint, "%s has no such operation%s", m.Name, quoted(name))
}

// complete offers services, then their operations, then the args.
func (f *registryFlag) complete(c *cli, withArgs bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		reg, err := f.load(c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var words []string
		if len(args) == 0 {
			for _, m := range reg.All() {
				words = append(words, cobra.CompletionWithDesc(m.ID, m.About))
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		}
		m := reg.Get(args[0])
		if m == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if len(args) == 1 {
			for _, o := range m.Ops {
				words = append(words, cobra.CompletionWithDesc(o.Name, o.Title))
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		}
		if o := m.Op(args[1]); o != nil && withArgs {
			for _, a := range o.Args {
				words = append(words, cobra.CompletionWithDesc(a.Name+"=", a.About))
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}
