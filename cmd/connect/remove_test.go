package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

// gone holds that nothing of a connection is left here.
func (w *world) gone(t *testing.T) {
	t.Helper()
	if files, err := filepath.Glob(filepath.Join(w.home, vaultFolder, "*")); err != nil || len(files) > 0 {
		t.Errorf("left: %v %v", files, err)
	}
}

func TestRemoveEndsIt(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	secret := w.one(t).Secret.Reveal()
	said, code := w.run(t, "remove", "github")
	calls := w.Upstream.Calls(brokertest.Revoke)
	if code != 0 || len(calls) != 1 || calls[0].Form.Get("access_token") != secret || !strings.Contains(said, "GitHub has ended the connection.\nGitHub is no longer connected here: octocat.\n") || strings.Contains(said, "still works") {
		t.Errorf("exit code %d, %d revocations:\n%s", code, len(calls), said)
	}
	w.gone(t)

	// Here alone.
	w.connect(t)
	w.Upstream.Reset()
	if said, code = w.run(t, "remove", "github", "--keep-at-service"); code != 0 || w.Upstream.Secret() != 0 || !strings.Contains(said, "The token itself still works") {
		t.Errorf("kept at the service: exit code %d, %d calls:\n%s", code, w.Upstream.Secret(), said)
	}
	w.gone(t)

	// What fails there does not keep it here.
	for what, a := range map[string]*brokertest.Answer{
		"it cannot be reached at the moment":                        brokertest.JSON(500, map[string]any{}),
		"the broker could not do it (incorrect_client_credentials)": brokertest.JSON(401, map[string]any{"error": "incorrect_client_credentials"}),
		"no answer came, so that it may have ended or not":          {Raw: reset},
		"the service refused":                                       brokertest.JSON(403, map[string]any{"message": "no"}),
	} {
		w.Upstream.SetAnswer(nil)
		w.connect(t)
		w.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
			if c.Kind == brokertest.Revoke {
				return a
			}
			return nil
		})
		said, code := w.run(t, "remove", "github")
		if code != 0 || !strings.Contains(said, "warning: it was not ended at GitHub: "+what+"\nGitHub is no longer connected here: octocat.\n") || !strings.Contains(said, "until you remove the app in your settings at GitHub.") {
			t.Errorf("%s: exit code %d:\n%s", what, code, said)
		}
		w.gone(t)
	}
}

// Where the operator allows it and the person agrees, all of the account's connections end.
func TestRemoveWider(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		w := newWorld(t, brokertest.Options{Config: func(c *broker.Config) { c.AllowWiderRevoke = allowed }})
		v, err := (&homeFlag{dir: w.home}).make()
		if err != nil {
			t.Fatal(err)
		}
		w.stored(t, v, "hubspot")
		w.Upstream.Reset()
		words := []string{"remove", "hubspot", "--broker-token-file", w.token(t, time.Hour), "--home", w.home, "--connect-to", "broker.test:443:" + w.Addr, "--cacert", w.ca}
		said, code := w.runAs(t, words...)
		if code != 3 || w.Upstream.Secret() != 0 || !strings.Contains(said, "This ends more than this connection: HubSpot ends every connection of Ada") {
			t.Errorf("not asked: exit code %d:\n%s", code, said)
		}
		said, code = w.runAs(t, append(words, "--yes")...)
		want, n := "HubSpot has ended the connection.", 1
		if !allowed {
			want, n = "warning: it was not ended at HubSpot: it would end more than this connection, and this broker's operator does not allow that", 0
		}
		if code != 0 || w.Upstream.Count(brokertest.Revoke) != n || !strings.Contains(said, want) {
			t.Errorf("allowed %v: exit code %d, %d revocations:\n%s", allowed, code, w.Upstream.Count(brokertest.Revoke), said)
		}
		w.gone(t)
	}
}

// A pasted token is nothing that a broker could end.
func TestRemovePastedAsksNobody(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	file := filepath.Join(t.TempDir(), "pat")
	if err := os.WriteFile(file, []byte("ghp_"+strings.Repeat("a", 36)), 0o600); err != nil {
		t.Fatal(err)
	}
	words := []string{"--home", w.home, "--connect-to", "api.github.com:443:" + w.api.Addr, "--cacert", w.ca}
	if said, code := w.runAs(t, append([]string{"add", "github", "--token-file", file}, words...)...); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, said)
	}
	said, code := w.runAs(t, append([]string{"remove", "github"}, words...)...)
	if code != 0 || w.Upstream.Secret() != 0 || !strings.Contains(said, "its page is where it was made, https://github.com/settings/") || strings.Contains(said, "warning") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
	w.gone(t)
}
