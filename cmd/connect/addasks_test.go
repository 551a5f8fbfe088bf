//go:build unix

package main

import (
	"html"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/integrations"
)

// On a terminal a connection by a browser that may write is stored only when the person says
// that the account is the right one. The browser is led on by a file that is gone afterwards.
func TestAddAsksWhoseItIs(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	dir := t.TempDir()
	for _, name := range []string{"xdg-open", "open"} {
		script := "#!/bin/sh\nprintf '%s' \"$*\" > " + dir + "/argv; cp \"$1\" " + dir + "/new.html; mv " + dir + "/new.html " + dir + "/page.html\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	token := w.token(t, time.Hour)
	for _, c := range []struct {
		words  []string
		answer string // "": it is not asked
		stored bool
	}{
		{[]string{"--write"}, "n", false},
		{[]string{"--write"}, "y", true},
		{nil, "", true},
	} {
		// testscript.Main has put the program on the path.
		cmd := exec.Command("connect", append(append([]string{"add", "github", "--broker", brokertest.Origin, "--broker-token-file", token}, w.flags()...), c.words...)...)
		cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"), "TMPDIR="+dir)
		tty, err := pty.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		defer tty.Close()
		screen := readScreen(tty)
		screen.await(t, "Go on only where it is the same.")
		page := awaitFile(t, filepath.Join(dir, "page.html"))
		argv := awaitFile(t, filepath.Join(dir, "argv"))
		if strings.Contains(argv, "http") || filepath.Base(argv) != "sign-in.html" {
			t.Errorf("the browser is started with %q", argv)
		}
		m := regexp.MustCompile(`<a href="([^"]*)">`).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("the page leads nowhere: %s", page)
		}
		number := regexp.MustCompile(`the number (\d{3} \d{3})\.`).FindStringSubmatch(screen.text())
		back, fragment := come(t, w.Server, html.UnescapeString(m[1]), number[1])
		if status, text := hand(t, back, fragment, ownOrigin(back)); status != http.StatusOK {
			t.Fatalf("the hand-over: %d %s", status, text)
		}
		if c.answer != "" {
			screen.await(t, "Connect GitHub, octocat, for writes too? [y/N] ")
			io.WriteString(tty, c.answer+"\n")
		}
		if !c.stored {
			screen.await(t, "the sign-in was ended at GitHub again")
		}
		err = cmd.Wait()
		said := screen.text()
		if (err == nil) != c.stored || c.answer == "" && strings.Contains(said, "[y/N]") {
			t.Errorf("%v, %q: %v\n%s", c.words, c.answer, err, said)
		}
		if _, err := os.Stat(argv); err == nil {
			t.Error("the page is still there")
		}
		list, _, err := w.vault(t).all()
		if err != nil || (len(list) == 1) != c.stored {
			t.Errorf("%v, %q: stored: %d, %v", c.words, c.answer, len(list), err)
		}
		if !c.stored && (w.Upstream.Count(brokertest.Revoke) != 1 || !strings.Contains(said, "it was not confirmed")) {
			t.Errorf("%d revocations:\n%s", w.Upstream.Count(brokertest.Revoke), said)
		}
		if c.answer == "y" && !list[0].CapAllows(integrations.Write) {
			t.Error("it may not write")
		}
		for _, name := range []string{"page.html", "argv"} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// awaitFile waits until a file is there, and returns what it holds.
func awaitFile(t *testing.T, name string) string {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if data, err := os.ReadFile(name); err == nil && len(data) > 0 {
			return string(data)
		}
	}
	t.Fatalf("%s did not appear", filepath.Base(name))
	return ""
}
