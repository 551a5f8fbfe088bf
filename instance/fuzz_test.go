package instance_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/custody"
)

// direct serves one request without a network, for the speed of it.
func (p *place) direct(t testing.TB, method, path, session, body string) answer {
	t.Helper()
	r := httptest.NewRequest(method, "http://chat.example"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+session)
	w := httptest.NewRecorder()
	p.in.ServeHTTP(w, r)
	a := answer{status: w.Code, header: w.Header(), body: w.Body.String()}
	var e struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal([]byte(a.body), &e) == nil {
		a.code = e.Error.Code
	}
	if a.status >= 500 && a.code != "quota" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a.status != 200 && (a.status < 400 || a.code == "") {
		t.Fatalf("%d without a code: %s", a.status, a.body)
	}
	return a
}

// FuzzPostMessage: whatever is posted, what the reader gets is an envelope from the author,
// to her, of this space and thread, as it was sealed.
func FuzzPostMessage(f *testing.F) {
	p := start(f, nil)
	ctx := f.Context()
	anna, boris := p.party(f, "member"), p.party(f, "member")
	if err := anna.NewThread(ctx, "t1", boris.ID()); err != nil {
		f.Fatal(err)
	}
	good := string(marshal(f, say(f, anna.Identity, boris.Public(), "t1", "hello")))
	foreign := string(marshal(f, say(f, boris.Identity, anna.Public(), "t1", "hello")))
	for _, body := range []string{
		`{"id":"a","thread":"t1","envelope":` + good + `}`, `{"id":"a","thread":"t1","envelope":` + good + `,"until":4000000000}`,
		`{"id":"b","envelope":` + good + `}`, `{"id":"c","thread":"t1","envelope":` + foreign + `}`, `{"id":"..","thread":"t1","envelope":{}}`,
		`{"id":"d","thread":"t1","envelope":` + strings.Replace(good, "home", "work", 1) + `}`, `{"id":1}`, `[]`, `null`, ``, `{"envelope":null}`,
		`{"id":"e","thread":"t1","until":-1,"envelope":` + good + `}`, `{"id":"f","thread":"t1","until":1e3,"envelope":` + good + `}`,
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		a := p.direct(t, "POST", "/api/messages", anna.session, body)
		list := p.direct(t, "GET", "/api/messages", boris.session, "")
		var out struct {
			Messages []struct {
				Seq      int64
				Author   custody.KeyID
				Envelope json.RawMessage
			}
			More bool
		}
		if err := json.Unmarshal([]byte(list.body), &out); err != nil {
			t.Fatal(err)
		}
		if a.status != 200 && len(out.Messages) > 0 {
			t.Fatalf("refused, and relayed: %s", a.body)
		}
		for _, m := range out.Messages {
			e, err := custody.ParseEnvelope(m.Envelope)
			if err != nil || e.From != anna.ID() || m.Author != anna.ID() || e.To != boris.ID() || e.Space != space || e.Thread != "t1" && e.Thread != "" {
				t.Fatalf("%s %v", m.Envelope, err)
			}
			p.direct(t, "DELETE", "/api/messages/"+jsonNumber(m.Seq), boris.session, "")
		}
	})
}

func jsonNumber(n int64) string {
	data, _ := json.Marshal(n)
	return string(data)
}

// FuzzPutBlob: whatever is put, a generation only rises, and what is there is the owner's.
func FuzzPutBlob(f *testing.F) {
	p := start(f, nil)
	anna := p.party(f, "member")
	copyOf, err := anna.SealIdentity(anna.Public(), space)
	if err != nil {
		f.Fatal(err)
	}
	id, cred := string(marshal(f, copyOf)), string(marshal(f, credential(f, anna.Identity, "c1", 1, "s")))
	for _, body := range []string{
		`{"expect":0,"envelope":` + id + `}`, `{"expect":1,"envelope":` + id + `}`, `{"expect":1,"generation":7,"envelope":` + id + `}`, `{"expect":0,"envelope":` + cred + `}`,
		`{"expect":9007199254740993,"envelope":` + id + `}`, `{"expect":null}`, `{"expect":0,"generation":-1,"envelope":` + id + `}`, `{"expect":0,"envelope":{"token":"x"}}`, `{}`, ``,
	} {
		f.Add("b1", body)
	}
	f.Add("..", `{"expect":0,"envelope":`+id+`}`)
	last := make(map[string]int64)
	f.Fuzz(func(t *testing.T, name, body string) {
		for _, c := range name {
			if c < '!' || c > '~' || strings.ContainsRune("%/?#", c) {
				t.Skip() // no such address
			}
		}
		a := p.direct(t, "PUT", "/api/blobs/"+name, anna.session, body)
		b := p.direct(t, "GET", "/api/blobs/"+name, anna.session, "")
		var out struct {
			Generation int64
			Envelope   json.RawMessage
		}
		if b.status != 200 {
			if a.status == 200 {
				t.Fatalf("taken, and not there: %s %s", a.body, b.body)
			}
			return
		}
		if err := json.Unmarshal([]byte(b.body), &out); err != nil {
			t.Fatal(err)
		}
		e, err := custody.ParseEnvelope(out.Envelope)
		if err != nil || e.From != anna.ID() || e.To != anna.ID() || out.Generation < last[name] || out.Generation < 1 {
			t.Fatalf("generation %d after %d: %s %v", out.Generation, last[name], out.Envelope, err)
		}
		last[name] = out.Generation
	})
}

// FuzzLink: whatever strangers send to a link, its owner sees only keys with a digest each, and
// nobody gets what was not sealed to the key that he offered.
func FuzzLink(f *testing.F) {
	p := start(f, nil)
	anna := p.party(f, "member")
	key, _ := identity(f).Public().MarshalText()
	mac := strings.Repeat("A", 43)
	f.Add("offer", `{"key":"`+string(key)+`","mac":"`+mac+`"}`)
	f.Add("offer", `{"key":"`+string(key)+`","mac":"`+mac+`="}`)
	f.Add("offer", `{"key":"`+mac+mac+`B","mac":""}`)
	f.Add("fetch", `{"ticket":"`+mac+`"}`)
	f.Add("fetch", `{"ticket":""}`)
	f.Add("answer", `{"envelope":{},"mac":"`+mac+`"}`)
	f.Add("offer", `{}`)
	const id = "AAAAAAAAAAAAAAAAAAAAAA"
	f.Fuzz(func(t *testing.T, what, body string) {
		if what != "offer" && what != "fetch" && what != "answer" {
			what = "offer"
		}
		if a := p.direct(t, "POST", "/api/links", anna.session, `{"id":"`+id+`"}`); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		a := p.direct(t, "POST", "/api/links/"+id+"/"+what, "", body)
		if what != "offer" && a.status == 200 {
			t.Fatalf("%s: %s", what, a.body)
		}
		list := p.direct(t, "GET", "/api/links/"+id, anna.session, "")
		var out struct {
			Offers []struct {
				Key custody.PublicKey
				MAC custody.Bytes
			}
		}
		if err := json.Unmarshal([]byte(list.body), &out); err != nil || len(out.Offers) > 1 || (len(out.Offers) == 1) != (a.status == 200) {
			t.Fatalf("%s after %d: %v", list.body, a.status, err)
		}
		for _, o := range out.Offers {
			if o.Key.IsZero() || len(o.MAC) != 32 {
				t.Fatal(list.body)
			}
		}
		p.direct(t, "DELETE", "/api/links/"+id, anna.session, "")
	})
}

// FuzzLogin: whatever is sent, nobody is logged in without the nonce that was sealed to a key.
func FuzzLogin(f *testing.F) {
	p := start(f, nil)
	anna := p.party(f, "member")
	key, _ := anna.Public().MarshalText()
	f.Add("login", `{"key":"`+string(key)+`"}`)
	f.Add("session", `{"key":"`+string(key)+`","nonce":"`+strings.Repeat("A", 75)+`"}`)
	f.Add("session", `{"key":"`+string(key)+`","nonce":"","join":{"kind":"bot"}}`)
	f.Add("session", `{"key":"`+string(key)+`","join":{"kind":"member","name":"\u0000"}}`)
	f.Fuzz(func(t *testing.T, what, body string) {
		if what != "login" {
			what = "session"
		}
		if a := p.direct(t, "POST", "/api/"+what, "", body); what == "session" && a.status == 200 {
			t.Fatal(a.body)
		}
	})
}
