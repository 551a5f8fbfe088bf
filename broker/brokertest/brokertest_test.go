package brokertest

import (
	"testing"

	"github.com/elevenmessenger/connect/integrations"
)

// TestConnect shows that every service's flow goes through here.
func TestConnect(t *testing.T) {
	s := New(t, Options{})
	for _, m := range s.Registry.All() {
		if m.Auth.OAuth == nil {
			continue
		}
		for _, access := range []integrations.Access{integrations.Read, integrations.Write} {
			s.Upstream.Reset()
			out := s.Connect(t, Ask{Service: m.ID, Access: access})
			if out.Error != "" || out.Secret.IsZero() {
				t.Errorf("%s, %s: outcome %q", m.ID, access, out.Error)
			}
			if got := s.Upstream.Secret(); got != 1 {
				t.Errorf("%s, %s: %d calls, want 1", m.ID, access, got)
			}
			if wants := m.Auth.OAuth.Refresh == nil || m.Auth.OAuth.Refresh.None == ""; wants == out.Refresh.IsZero() {
				t.Errorf("%s, %s: refresh token present: %v, want %v", m.ID, access, !out.Refresh.IsZero(), wants)
			}
		}
	}
}
