package sidecar

import (
	"os"
	"path/filepath"
	"testing"
)

// A folder may be called anything.
func TestStoreInAnyFolder(t *testing.T) {
	for _, name := range []string{"plain", "with space", "a?b#c", "50%41", "ümlaut"} {
		dir := filepath.Join(t.TempDir(), name)
		s, err := openStore(t.Context(), dir, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s.close()
		if info, err := os.Stat(filepath.Join(dir, "sidecar.db")); err != nil || info.Size() == 0 {
			t.Errorf("%s: the store is elsewhere (%v)", name, err)
		}
	}
}
