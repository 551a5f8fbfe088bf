package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/integrations"
)

const tokenHint = "give --token-env NAME or --token-file FILE, or answer the hidden prompt on a terminal"

// tokenFlags say where the token comes from: never an argument, which other users of the
// machine and the shell's history can read.
type tokenFlags struct {
	env, file string
	oauth     bool
	fields    []string
}

// maxTokenFile bounds the file that --token-file names.
const maxTokenFile = 16 << 10

func (f *tokenFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.env, "token-env", "", "take the token from the environment variable `NAME`")
	cmd.Flags().StringVar(&f.file, "token-file", "", "take the token from `FILE`")
	cmd.Flags().BoolVar(&f.oauth, "oauth", false, "the token comes from an OAuth flow: send it as Bearer")
	cmd.Flags().StringArrayVar(&f.fields, "field", nil, "what is pasted beside the token, as `NAME=VALUE`; may be repeated")
}

// given says whether a token is to come from somewhere.
func (f *tokenFlags) given() bool {
	return f.env != "" || f.file != "" || f.oauth || len(f.fields) > 0
}

// check looks at what can be said without the token.
func (f *tokenFlags) check(m *integrations.Manifest) (integrations.Credential, error) {
	cred := integrations.Credential{Kind: integrations.PAT}
	if f.oauth {
		cred.Kind = integrations.OAuth2
	}
	if f.env != "" && f.file != "" {
		return cred, usagef("", "give one of --token-env and --token-file")
	}
	if a := m.Auth.Authorization; a.Scheme == "no" && !f.oauth {
		return cred, &hintedError{&integrations.RefusedError{Reason: m.Name + " takes no pasted token", Hint: a.Why}, "a token from an OAuth flow is sent with --oauth"}
	}
	var known []string
	for _, p := range m.Auth.PastedFields {
		known = append(known, p.Name)
	}
	for _, s := range f.fields {
		name, value, ok := strings.Cut(s, "=")
		if !ok || value == "" {
			return cred, usagef("", "--field is written NAME=VALUE")
		}
		if !slices.Contains(known, name) {
			if len(known) == 0 {
				return cred, usagef("", "--field: %s takes nothing beside the token", m.Name)
			}
			return cred, usagef(m.Name+" has: "+strings.Join(known, ", "), "--field names nothing that %s takes", m.Name)
		}
		if cred.Fields == nil {
			cred.Fields = make(map[string]string)
		}
		cred.Fields[name] = value
	}
	if f.oauth {
		return cred, nil
	}
	for _, p := range m.Auth.PastedFields {
		if cred.Fields[p.Name] == "" {
			return cred, usagef("--field "+p.Name+"=…", "%s needs something beside the token: %s", m.Name, p.Label)
		}
	}
	return cred, nil
}

// read takes the token from where the flags say, or asks for it.
func (f *tokenFlags) read(ctx context.Context, c *cli, t *terminal, m *integrations.Manifest) (integrations.Secret, error) {
	var none integrations.Secret
	var token string
	switch {
	case f.env != "":
		// The name is not repeated: a shell may have put the token itself in its place.
		if token = strings.TrimSpace(os.Getenv(f.env)); token == "" {
			return none, usagef("it takes the variable's name, without $", "--token-env: that environment variable is not set")
		}
	case f.file != "":
		data, err := readFile(f.file, maxTokenFile)
		if err != nil {
			return none, usagef("", "--token-file: the file %w", err)
		}
		if token = strings.TrimSpace(string(data)); token == "" {
			return none, usagef("", "--token-file: the file is empty")
		}
	case t == nil:
		return none, usagef(tokenHint, "there is no token, and no terminal to ask for one")
	default:
		if m.Auth.PATHelp != "" && !f.oauth {
			c.note("A token is made at %s", m.Auth.PATHelp)
		}
		var err error
		token, err = t.hidden(ctx, m.Name+" token (not shown): ")
		switch {
		case errors.Is(err, errNoAnswer) || err == nil && token == "":
			return none, &integrations.RefusedError{Reason: "no token was given"}
		case err != nil:
			return none, &integrations.RefusedError{Reason: "the terminal gave no token"}
		}
	}
	if f.oauth {
		return integrations.NewSecret(token), nil
	}
	switch verdict, say := m.Auth.Judge(token); verdict {
	case "refuse":
		hint := ""
		if m.Auth.PATHelp != "" {
			hint = "a token is made at " + m.Auth.PATHelp
		}
		return none, &integrations.RefusedError{Reason: strings.TrimSuffix(say, "."), Hint: hint}
	case "warn":
		c.note("warning: %s", say)
	}
	return integrations.NewSecret(token), nil
}
