package broker

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/elevenmessenger/connect/integrations"
)

// TestHostsArePinned: a manifest that would send a client secret to another host changes
// hosts.json too, for a reviewer to see.
func TestHostsArePinned(t *testing.T) {
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string][]string)
	for _, m := range reg.All() {
		if m.Auth.OAuth == nil {
			continue
		}
		hosts := secretHosts(m.Auth.OAuth)
		slices.Sort(hosts)
		want[m.ID] = slices.Compact(hosts)
	}
	text, err := json.MarshalIndent(want, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	if *Update {
		if err := os.WriteFile("hosts.json", text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(text, pinnedJSON) {
		t.Errorf("hosts.json is not what the registry says; go test ./broker -run HostsArePinned -update writes it.\ngot  %s\nwant %s", pinnedJSON, text)
	}
}
