package instance_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance/client"
)

// TestJavaScript: what docs/instance.md says is enough for the other language: Node links a
// device, logs in with a key that no script can export, reads and answers.
func TestJavaScript(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		if testing.Short() {
			t.Skip("node is not here")
		}
		t.Fatal("node is not here: install Node 20 or newer, or run with -short")
	}
	p := start(t, nil)
	ctx := t.Context()
	anna, bot := p.party(t, "member"), p.party(t, "bot")
	if err := anna.NewThread(ctx, "t1", bot.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := bot.Post(ctx, "", say(t, bot.Identity, anna.Public(), "t1", "good morning"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	code := client.NewLinkCode()
	linked := make(chan error, 1)
	go func() { linked <- anna.Link(ctx, code) }()
	eventually(t, "the link is open", func() bool { return strings.Contains(p.log.String(), `"route":"POST /api/links"`) })
	input, err := json.Marshal(map[string]any{"origin": p.URL, "bot": bot.ID(), "code": strings.ReplaceAll(code.Show(), "-", "")})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "node", "testdata/conversation.mjs")
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if err := <-linked; err != nil {
		t.Error(err)
	}
	var out struct {
		ID, Author custody.KeyID
		Kind       string
	}
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil || out.ID != anna.ID() || out.Author != bot.ID() || out.Kind != "member" {
		t.Errorf("%s %v", stdout.String(), err)
	}
	page, err := bot.Since(ctx, 0)
	if err != nil || len(page.Messages) != 1 {
		t.Fatalf("%+v %v", page, err)
	}
	var s custody.Say
	if err := bot.OpenMessage(page.Messages[0].Envelope, anna.Public(), nil, &s); err != nil || s.Text != "I heard: good morning" {
		t.Errorf("%+v %v", s, err)
	}
}
