// Package canary makes template-canary.yaml of template.yaml: the same stack, deployed to a
// tenth of the callers first. It is a copy and no option of the one file, since an alias makes
// SAM give a changed parameter the same version's name, so that old settings go on being
// served; here Revision is part of that name.
package canary

import (
	"bytes"
	"fmt"
	"strings"
)

// marker begins a line of template.yaml after which lines go.
const marker = "# canary: "

const head = "# Generated from template.yaml by go test ./functions -run Canary -update. Do not edit.\n"

// lines are what goes after each marker, at the marker's own depth.
var lines = map[string]string{
	"parameters": `
Revision:
  Type: String
  AllowedPattern: ^[0-9a-f]{10,64}$
  ConstraintDescription: 10 to 64 digits and letters a to f
  Description: >-
    A digest of the built code and of all parameter values, in hex. Where it stays the same,
    no new version is made and nothing changes; docs/operating.md has the command.
`,
	"globals": `
AutoPublishAlias: live
DeploymentPreference:
  Type: Canary10Percent5Minutes
  # The functions' own errors: one that watched the API would be a circle.
  Alarms: [!Ref RegistryErrors, !Ref ConfigErrors, !Ref OAuthCallbackErrors, !Ref RefreshErrors]
`,
	"function": `
AutoPublishCodeSha256: !Ref Revision
`,
}

// want is how often each marker stands in the file.
var want = map[string]int{"parameters": 1, "globals": 1, "function": 4}

// Template returns the copy.
func Template(source []byte) ([]byte, error) {
	out := bytes.NewBufferString(head)
	seen := make(map[string]int)
	for line := range strings.Lines(string(source)) {
		out.WriteString(line)
		indent, name, ok := strings.Cut(strings.TrimRight(line, "\n"), marker)
		if !ok || strings.TrimSpace(indent) != "" {
			continue
		}
		if _, known := want[name]; !known {
			return nil, fmt.Errorf("canary: no lines for the marker %q", name)
		}
		seen[name]++
		for l := range strings.Lines(strings.TrimPrefix(lines[name], "\n")) {
			out.WriteString(indent + l)
		}
	}
	for name, n := range want {
		if seen[name] != n {
			return nil, fmt.Errorf("canary: the marker %q stands there %d times, not %d", name, seen[name], n)
		}
	}
	return out.Bytes(), nil
}
