package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An endSecret may be found nowhere. What is the instance's own may be shown to it.
type endSecret struct {
	name  string
	forms [][]byte
	shown bool
}

// hide adds a secret to those that are looked for.
func (s *endStage) hide(name, text string, shown bool) {
	secret := endSecret{name: name, shown: shown}
	for _, part := range partsOf(text) {
		for _, form := range formsOf(part) {
			secret.forms = append(secret.forms, []byte(form))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets = append(s.secrets, secret)
}

// partsOf cuts a text into parts of 20 characters, so that one that is cut short is found
// too. The last two may overlap.
func partsOf(text string) (parts []string) {
	const size = 20
	for at := 0; at+size <= len(text); at += size {
		parts = append(parts, text[at:at+size])
	}
	return append(parts, text[max(0, len(text)-size):])
}

// formsOf returns the ways in which a text may stand in another: as it is, percent-encoded, in
// hex, and in base64 of either alphabet, wherever it begins there.
func formsOf(text string) []string {
	plain := hex.EncodeToString([]byte(text))
	var percent strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&percent, "%%%02x", c)
	}
	forms := []string{text, url.QueryEscape(text), url.PathEscape(text), plain, strings.ToUpper(plain), percent.String(), strings.ToUpper(percent.String())}
	for before := range 3 {
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			coded := enc.EncodeToString(append(make([]byte, before), text...))
			// The characters at both ends hold bits of what stands beside it.
			forms = append(forms, coded[(before*8+5)/6:(before+len(text))*8/6])
		}
	}
	return forms
}

// finds returns which secrets a text holds.
func (s *endStage) finds(text []byte, atInstance bool) (all []string) {
	for _, secret := range s.secrets {
		if atInstance && secret.shown {
			continue
		}
		for _, form := range secret.forms {
			if at := bytes.Index(text, form); at >= 0 {
				all = append(all, fmt.Sprintf("%s at byte %d", secret.name, at))
				break
			}
		}
	}
	return all
}

// TestEndToEndFinds holds that the sentinel would find what it looks for.
func TestEndToEndFinds(t *testing.T) {
	const secret = "rk_test_SENTINEL?>~/+0001-and-some-more"
	s := &endStage{t: t}
	s.hide("it", secret, false)
	for _, cut := range []string{secret, secret[:20], secret[len(secret)-20:]} {
		for before := range 4 {
			text := strings.Repeat("x", before) + cut + "yz"
			var percent strings.Builder
			for _, c := range []byte(text) {
				fmt.Fprintf(&percent, "%%%02X", c)
			}
			for _, as := range []string{text, url.QueryEscape(text), url.PathEscape(text), percent.String(), hex.EncodeToString([]byte(text)), fmt.Sprintf("%X", text),
				base64.StdEncoding.EncodeToString([]byte(text)), base64.URLEncoding.EncodeToString([]byte(text)), base64.RawURLEncoding.EncodeToString([]byte(text))} {
				if len(s.finds([]byte(as), true)) == 0 {
					t.Errorf("%s is not found in %s", cut, as)
				}
			}
		}
	}
	if got := s.finds([]byte("rk_test_SENTIN0L?>~/+0001-und-some-more"), true); len(got) != 0 {
		t.Errorf("it finds %q where there is none", got)
	}
}

var (
	sessionText = regexp.MustCompile(`"session":"([A-Za-z0-9_-]{20,})"`)
	sealedText  = regexp.MustCompile(`"ct":"([A-Za-z0-9_-]+)"`)
)

// sweepAll looks for the secrets in all that was written, logged, sent and said, while the
// programs run and after they have ended.
func (s *endCast) sweepAll(t *testing.T) {
	sessions := sessionText.FindAllStringSubmatch(s.wire.down.String(), -1)
	if len(sessions) < 4 {
		t.Errorf("the instance gave %d sessions", len(sessions))
	}
	for i, m := range sessions {
		s.hide(fmt.Sprintf("session %d", i+1), m[1], true)
	}
	s.sweepFiles(t) // with the log of each database
	s.sidecar.stop()
	s.instance.stop()
	s.sweepFiles(t)

	look := func(where, text string, least int, atInstance bool) {
		t.Helper()
		if len(text) < least {
			t.Errorf("%s has %d bytes only", where, len(text))
		}
		for _, f := range s.finds([]byte(text), atInstance) {
			t.Errorf("%s holds %s", where, f)
		}
	}
	look("what the instance says", s.instance.said.String(), 1000, false)
	for i, p := range s.sidecars {
		look(fmt.Sprintf("what sidecar %d says", i+1), p.said.String(), 300, false)
	}
	look("what the broker says", s.broker.Logs()+s.broker.Metrics(), 300, false)
	s.mu.Lock()
	errs := s.errors.String()
	s.mu.Unlock()
	look("the errors", errs, 500, false)
	s.sweepWire(t, look)
	s.sweepProvider(t, look)
}

// sweepWire looks at what crossed, as it crossed, and at the ciphertext inside it.
func (s *endCast) sweepWire(t *testing.T, look func(where, text string, least int, atInstance bool)) {
	t.Helper()
	envelopes := 0
	for where, text := range map[string]string{"what went to the instance": s.wire.up.String(), "what came from the instance": s.wire.down.String()} {
		look(where, text, 10_000, true)
		for _, m := range sealedText.FindAllStringSubmatch(text, -1) {
			if raw, err := base64.RawURLEncoding.DecodeString(m[1]); err == nil {
				envelopes++
				look("an envelope that crossed", string(raw), 81, false)
			}
		}
	}
	if envelopes < 20 {
		t.Errorf("%d envelopes crossed", envelopes)
	}
	t.Logf("%d envelopes crossed", envelopes)
}

// sweepProvider looks at all that the provider was asked but the header that is for tokens.
func (s *endCast) sweepProvider(t *testing.T, look func(where, text string, least int, atInstance bool)) {
	t.Helper()
	seen := s.provider.requests(0)
	authorized := 0
	for _, r := range seen {
		if strings.HasPrefix(r.header.Get("Authorization"), "Bearer rk_test_SENTINEL") {
			authorized++
		}
		h := r.header.Clone()
		h.Del("Authorization")
		rest, err := json.Marshal([]any{r.method, r.host, r.uri, r.body, h})
		if err != nil {
			t.Fatal(err)
		}
		look("a request at the provider", string(rest), 20, false)
	}
	if authorized != len(seen) || authorized < 5 {
		t.Errorf("of %d requests %d showed a token", len(seen), authorized)
	}
	for _, c := range s.broker.Upstream.Calls() {
		rest, err := json.Marshal([]any{c.Method, c.Host, c.Path, c.Query})
		if err != nil {
			t.Fatal(err)
		}
		look("an address at the provider's sign-in", string(rest), 20, false)
	}
}

// sweepFiles looks at each file of the instance and the sidecar. A bot's own key is not among
// what is looked for: it stands in its file by design.
func (s *endCast) sweepFiles(t *testing.T) {
	t.Helper()
	files := make(map[string]int)
	for _, dir := range []string{"instance", "bot"} {
		err := filepath.WalkDir(filepath.Join(s.dir, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name := dir + "/" + filepath.Base(path)
			files[name] = len(data)
			for _, f := range s.finds(data, false) {
				t.Errorf("%s holds %s", name, f)
			}
			for _, m := range sealedText.FindAllSubmatch(data, -1) {
				raw, err := base64.RawURLEncoding.DecodeString(string(m[1]))
				if err != nil {
					continue // cut by the end of a page
				}
				for _, f := range s.finds(raw, false) {
					t.Errorf("an envelope in %s holds %s", name, f)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"instance/instance.db", "bot/sidecar.db", "bot/state.db", "bot/helper.pem"} {
		if files[name] == 0 {
			t.Errorf("there is no %s, or it is empty; there is %v", name, files)
		}
	}
	t.Logf("files: %v", files)
}
