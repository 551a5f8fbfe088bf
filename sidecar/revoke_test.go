package sidecar

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

func TestRevoke(t *testing.T) {
	s := newStage(t)
	s.broker.answer(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(10 * time.Millisecond)
		jsonAnswer(200, `{"revoked":true}`)(w, r)
	})
	c := s.connection("github", integrations.Write, time.Hour)
	d := s.revokes(c)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if out := s.read(s.ada, d); out.code() != "ok" || string(out.Result.Result) != `{"revoked":true,"why":"","where":""}` {
				t.Errorf("%s %+v", out.code(), out.Result)
			}
		})
	}
	wg.Wait()
	s.want(t, s.read(s.ada, d), "ok", 0, 1)
	r := s.broker.requests()[0]
	if r.URI != "/api/revoke" || r.Authorization != "Bearer instance-token-fake" || r.Body != `{"service":"github","secret":"at1-fake","refresh":"rt1.k.fake1"}` {
		t.Errorf("the broker saw %+v", r)
	}
	// Stopped grants may be disconnected: that is what comes next.
	s.tell(s.ada, &custody.End{At: s.now.now().Unix(), Credential: c.ID})
	s.want(t, s.read(s.ada, s.revokes(c)), "ok", 0, 2)

	s.forget()
	// Nothing but a revoke's own grant ends a connection, and nobody but its member.
	o := s.order(s.connection("github", integrations.Read, 0), "whoami", `{}`)
	id := custody.NewID()
	for _, x := range []struct {
		want  string
		grant *custody.Envelope
		of    string
	}{
		{custody.CodeRefused, must(o.grant.Seal(s.ada, s.bot.Public(), nil, testSpace, testThread, id)), "github"}, // an op's
		{custody.CodeAuthor, must(must(custody.MintRevoke(c, s.now.now())).Seal(s.ada, s.bot.Public(), nil, testSpace, testThread, custody.NewID())), "github"},
		{custody.CodeAuthor, must(must(custody.MintRevoke(c, s.now.now())).Seal(s.eve, s.bot.Public(), nil, testSpace, testThread, id)), "github"},
		{custody.CodeService, must(must(custody.MintRevoke(c, s.now.now())).Seal(s.ada, s.bot.Public(), nil, testSpace, testThread, id)), "linear"},
		{custody.CodeExpired, must(must(custody.MintRevoke(c, s.now.now().Add(-time.Hour))).Seal(s.ada, s.bot.Public(), nil, testSpace, testThread, id)), "github"},
	} {
		s.want(t, s.read(s.ada, s.posts(s.ada, custody.Header{Op: id}, &custody.Revoke{V: 1, ID: id, Service: x.of, Grant: x.grant})), x.want, 0, 0)
	}
	// A revoke's grant runs no operation.
	op := *o
	op.grant = must(custody.MintRevoke(c, s.now.now()))
	s.want(t, s.send(&op), custody.CodeRefused, 0, 0)
	// Another broker's connection is ended by nobody else; what fails may be asked again.
	elsewhere := *c
	elsewhere.Broker = "https://elsewhere.example"
	s.want(t, s.read(s.ada, s.revokes(&elsewhere)), custody.CodeReconnect, 0, 0)
	again := s.revokes(c)
	s.broker.answer(jsonAnswer(503, `{"class":"temporary","retry_after":9}`))
	if out := s.read(s.ada, again); out.code() != custody.CodeTemporary || out.Error.RetryAfter != 9 {
		t.Errorf("%s %+v", out.code(), out.Error)
	}
	s.broker.answer(jsonAnswer(200, `{"revoked":false,"why":"said so","where":"https://github.com/settings"}`))
	out := s.read(s.ada, again)
	s.want(t, out, "ok", 0, 2)
	var a RevokeAnswer
	if err := json.Unmarshal(out.Result.Result, &a); err != nil || a.Revoked || a.Where != "https://github.com/settings" {
		t.Errorf("%s %v", out.Result.Result, err)
	}
}

func TestLegacy(t *testing.T) {
	s := newStage(t)
	s.provider.answer(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer at-fake":
			jsonAnswer(401, `{"message":"Authentication failed"}`)(w, r)
		case strings.HasSuffix(r.URL.Path, "/accounts"):
			jsonAnswer(200, `{"data":[{"id":1010,"email":"ada@example.com"}]}`)(w, r)
		default:
			jsonAnswer(200, `{"data":[{"id":1,"name":"blip.com","expires_at":"2027-01-01T00:00:00Z","state":"registered"},{"id":2,"name":"blop.com","expires_at":null,"state":"hosted"}],
				"pagination":{"current_page":1,"per_page":30,"total_entries":2,"total_pages":1}}`)(w, r)
		}
	})
	ask := func(data []byte) (r custody.LegacyResult, err error) {
		out, err := s.HandleLegacy(t.Context(), s.bot.Public().ID(), s.ada.Public().ID(), data)
		if err == nil {
			err = json.Unmarshal(out, &r)
		}
		return r, err
	}
	r, err := ask(s.before("at-fake"))
	if err != nil || !r.OK || r.ID != "x1" || len(r.Domains) != 2 || r.Domains[0] != (custody.LegacyDomain{Name: "blip.com", ExpiresAt: "2027-01-01T00:00:00Z"}) {
		t.Fatalf("%+v %v", r, err)
	}
	for _, q := range s.provider.requests() {
		if q.Method != "GET" {
			t.Errorf("it sent %s %s", q.Method, q.URI)
		}
	}
	// Another token, an old grant, one for another bot, several accounts.
	for name, data := range map[string][]byte{"at-other": s.before("at-other"), "foreign": []byte(`{"type":"connect.op","id":"x1","op":"list","grant":"` + must(custody.SealLegacyGrant(s.eve.Public(), custody.LegacyGrant{Token: secret("at-fake"), ExpiresAt: s.now.now().Add(time.Hour).Unix()})) + `"}`)} {
		if r, err := ask(data); err != nil || r.OK || r.Error == "" || len(r.Domains) != 0 {
			t.Errorf("%s: %+v %v", name, r, err)
		}
	}
	old := s.before("at-fake")
	s.now.forward(2 * time.Hour)
	s.forget()
	if r, err := ask(old); err != nil || r.OK || !strings.Contains(r.Error, "over") {
		t.Errorf("an old grant: %+v %v", r, err)
	}
	s.want(t, outcome{}, "none", 0, 0)
	s.provider.answer(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"data":[{"id":1,"email":"a@example.com"},{"id":2,"email":"b@example.com"}]}`)
	})
	if r, err := ask(s.before("at-fake")); err != nil || r.OK || !strings.Contains(r.Error, "several accounts") {
		t.Errorf("several accounts: %+v %v", r, err)
	}
	// More domains than one message holds are said to be.
	row := `{"id":1,"name":"` + strings.Repeat("a", 200) + `.com","expires_at":"2027-01-01T00:00:00Z"}`
	pages := 0
	s.provider.answer(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/accounts") {
			jsonAnswer(200, `{"data":[{"id":1010,"email":"ada@example.com"}]}`)(w, r)
			return
		}
		pages++
		jsonAnswer(200, `{"data":[`+strings.Repeat(row+",", 99)+row+`],"pagination":{"current_page":`+[]string{"1", "2", "3", "4"}[min(pages-1, 3)]+`,"per_page":100,"total_entries":400,"total_pages":4}}`)(w, r)
	})
	if r, err := ask(s.before("at-fake")); err != nil || r.OK || r.Error != errManyDomains.Error() || pages != 4 {
		t.Errorf("many domains, %d pages: %d of them, %s %v", pages, len(r.Domains), r.Error, err)
	}
	// Switched off, or for nobody here, it has no answer.
	if _, err := s.HandleLegacy(t.Context(), s.eve.Public().ID(), s.ada.Public().ID(), old); !errors.Is(err, custody.ErrNotMine) {
		t.Errorf("another bot: %v", err)
	}
	off := newStage(t, func(c *Config) { c.NoLegacy = true })
	if _, err := off.HandleLegacy(t.Context(), off.bot.Public().ID(), off.ada.Public().ID(), off.before("at-fake")); !errors.Is(err, ErrPurpose) {
		t.Errorf("switched off: %v", err)
	}
}
