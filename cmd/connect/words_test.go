package main

import (
	"os/exec"
	"testing"

	"github.com/elevenmessenger/connect/integrations"
)

func TestShellWord(t *testing.T) {
	for _, s := range []string{"", "plain", "a b", "it's", `"$HOME"`, "`id`", `\`, "ü“”", "*", "~", "a=b&c", "-x", "!!", "'", "a'\"'b"} {
		word, ok := shellWord(s)
		if !ok {
			t.Errorf("shellWord(%q) is not ok", s)
			continue
		}
		out, err := exec.Command("sh", "-c", "printf %s "+word).Output()
		if err != nil || string(out) != s {
			t.Errorf("shellWord(%q) = %s, which a shell reads as %q (%v)", s, word, out, err)
		}
	}
	for _, s := range []string{"a\nb", "\x1b[31m", "\u202e", "\u200b"} {
		if word, ok := shellWord(s); ok {
			t.Errorf("shellWord(%q) = %q, but it does not print", s, word)
		}
	}
}

func TestSplitConnectTo(t *testing.T) {
	for _, c := range []struct{ in, from, to string }{
		{"api.example.com:443:127.0.0.1:8443", "api.example.com:443", "127.0.0.1:8443"},
		{"API.example.com:443:localhost:8443", "api.example.com:443", "localhost:8443"},
		{"api.example.com:443:[::1]:8443", "api.example.com:443", "[::1]:8443"},
		{"api.example.com:443:::1:8443", "", ""},
		{"api.example.com:443:[::1]", "", ""},
		{"api.example.com:443:127.0.0.1:0", "", ""},
		{"api.example.com:443:127.0.0.1:65536", "", ""},
		{"api.example.com:443:127.0.0.1:", "", ""},
		{"api.example.com:443::8443", "", ""},
		{"api.example.com::127.0.0.1:8443", "", ""},
		{"api.example.com:8080:127.0.0.1:8443", "", ""},
		{":443:127.0.0.1:8443", "", ""},
		{"api.example.com:443", "", ""},
		{"api.example.com", "", ""},
		{"", "", ""},
	} {
		from, to, ok := splitConnectTo(c.in)
		if from != c.from || to != c.to || ok != (c.from != "") {
			t.Errorf("splitConnectTo(%q) = %q, %q, %v; want %q, %q", c.in, from, to, ok, c.from, c.to)
		}
	}
}

// Every error code that the executor can give has its exit code in the one table.
func TestEveryErrorCodeHasAnExitCode(t *testing.T) {
	for err, want := range map[error]int{
		integrations.ErrProvider: 1, integrations.ErrRateLimited: 1, integrations.ErrUnauthorised: 1,
		integrations.ErrRefused: 3, integrations.ErrTooLarge: 4, integrations.ErrUnknownOutcome: 5,
		integrations.ErrUnreachable: 6, errUsage: 2, errFindings: 1, nil: 0,
	} {
		if got := exitCode(err); got != want {
			t.Errorf("exitCode(%v) = %d, want %d", err, got, want)
		}
	}
	codes := make(map[int]bool)
	for _, e := range exits {
		if codes[e.code] {
			t.Errorf("exit code %d stands twice", e.code)
		}
		codes[e.code] = true
	}
}
