package client_test

import (
	"context"
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance/client"
)

// A server is an instance as it should not be: it logs anybody in, and answers what a test says.
// The tests of package instance run the client against the real one.
type server struct {
	*httptest.Server
	logins atomic.Int64
}

func start(t *testing.T, space string, answer http.HandlerFunc) *server {
	t.Helper()
	s := new(server)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/login", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Key custody.PublicKey }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		key, err := ecdh.P256().NewPublicKey(in.Key.Bytes())
		if err != nil {
			t.Error(err)
		}
		to, _ := hpke.NewDHKEMPublicKey(key)
		info := "connect/v1 login" + string([]byte{0, 0, 0, byte(len(space))}) + space
		sealed, err := hpke.Seal(to, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(info), []byte("nonce"))
		if err != nil {
			t.Error(err)
		}
		json.NewEncoder(w).Encode(map[string]any{"space": space, "sealed": custody.Bytes(sealed)})
	})
	mux.HandleFunc("POST /api/session", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"session":"SESSION-%d","later":1}`, s.logins.Add(1))
	})
	mux.HandleFunc("/", answer)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, s *server) (*client.Client, *custody.Identity) {
	t.Helper()
	i, err := custody.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(t.Context(), s.URL, i, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c, i
}

func TestDialRefused(t *testing.T) {
	i, err := custody.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for _, origin := range []string{"", "chat.example", "http://chat.example", "ftp://chat.example", "https://secret@chat.example", "https://chat.example/x", "https://chat.example?x", ":"} {
		if _, err := client.Dial(t.Context(), origin, i, client.Options{}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", origin, err)
		}
	}
	if _, err := client.Dial(t.Context(), "http://127.0.0.1:1", nil, client.Options{}); err == nil {
		t.Error("no identity")
	}
	if _, err := client.Dial(t.Context(), "http://127.0.0.1:1", i, client.Options{}); !errors.Is(err, client.ErrUnreachable) || strings.Contains(err.Error(), "/api/") {
		t.Errorf("nobody there: %v", err)
	}
}

// TestRetries: a passing failure is tried again, with the same body, under the same id.
func TestRetries(t *testing.T) {
	var bodies []string
	var tries atomic.Int64
	s := start(t, "home", func(w http.ResponseWriter, r *http.Request) {
		var b strings.Builder
		var raw json.RawMessage
		json.NewDecoder(r.Body).Decode(&raw)
		b.Write(raw)
		bodies = append(bodies, b.String())
		switch tries.Add(1) {
		case 1:
			w.WriteHeader(502)
		case 2:
			panic(http.ErrAbortHandler) // the answer is lost
		default:
			fmt.Fprint(w, `{"seq":5}`)
		}
	})
	c, i := dial(t, s)
	e, err := i.SealMessage(i.Public(), nil, custody.Header{Space: "home", Thread: "t"}, &custody.Say{V: 1, ID: custody.NewID(), At: 1, Text: "x"})
	if err != nil {
		t.Fatal(err)
	}
	seq, err := c.Post(t.Context(), "", e, time.Time{})
	if err != nil || seq != 5 || len(bodies) != 3 || bodies[0] != bodies[1] || bodies[1] != bodies[2] {
		t.Errorf("seq %d, %d tries: %v", seq, len(bodies), err)
	}
}

// TestNotRetried: what another try does not change is told at once, in its class.
func TestNotRetried(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   error
	}{
		{409, `{"error":{"code":"conflict","message":"of another generation","generation":7}}`, client.ErrConflict},
		{410, `{"error":{"code":"deleted","message":"gone","generation":8}}`, client.ErrDeleted},
		{404, `{"error":{"code":"no_such_blob","message":"none"}}`, client.ErrNotFound},
		{507, `{"error":{"code":"quota","message":"full"}}`, client.ErrQuota},
		{413, `{"error":{"code":"too_large","message":"too large"}}`, client.ErrTooLarge},
	} {
		tries := 0
		s := start(t, "home", func(w http.ResponseWriter, _ *http.Request) {
			tries++
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.body)
		})
		cl, _ := dial(t, s)
		if _, err := cl.Blob(t.Context(), "b"); !errors.Is(err, c.want) || tries != 1 {
			t.Errorf("%d: %v after %d tries", c.status, err, tries)
		}
	}
}

// TestSessionIsRenewed once for a request, not for ever.
func TestSessionIsRenewed(t *testing.T) {
	var asked atomic.Int64
	s := start(t, "home", func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Authorization") == "Bearer SESSION-2" && r.URL.Path == "/api/threads" {
			fmt.Fprint(w, `{"threads":[]}`)
			return
		}
		w.WriteHeader(401)
		fmt.Fprint(w, `{"error":{"code":"session","message":"over"}}`)
	})
	c, _ := dial(t, s)
	if _, err := c.Threads(t.Context()); err != nil || s.logins.Load() != 2 {
		t.Errorf("%v after %d logins", err, s.logins.Load())
	}
	before := asked.Load()
	if _, err := c.Blobs(t.Context()); !errors.Is(err, client.ErrSession) || asked.Load() != before+2 {
		t.Errorf("%v after %d requests", err, asked.Load()-before)
	}
}

// TestHostileAnswers: an instance that answers too much, elsewhere or nonsense is an error, and
// writes nothing of its choice into it.
func TestHostileAnswers(t *testing.T) {
	i, err := custody.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	other, _ := i.Public().MarshalText()
	for name, answer := range map[string]http.HandlerFunc{
		"endless":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"id":"`+strings.Repeat("A", 5<<20)+`"}`) },
		"not JSON": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `<html>`) },
		"empty":    func(w http.ResponseWriter, _ *http.Request) {},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
		"another's key": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"id":"x","key":%q}`, other) },
		"no key":        func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"id":"x"}`) },
		"a long word": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"error":{"code":"\u001b[2J","message":%q}}`, "\x1b[2J"+strings.Repeat("x", 10000))
		},
	} {
		s := start(t, "home", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				t.Errorf("%s: it was followed", name)
			}
			answer(w, r)
		})
		c, _ := dial(t, s)
		if _, err := c.Member(t.Context(), "x"); err == nil || len(err.Error()) > 400 || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Pages without an end.
	s := start(t, "home", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"members":[],"next":"AAA"}`) })
	c, _ := dial(t, s)
	if _, err := c.Members(t.Context()); err == nil {
		t.Error("the pages never end")
	}
	// Envelopes of others do not come out.
	foreign, err := i.SealMessage(i.Public(), nil, custody.Header{Space: "home", Thread: "t"}, &custody.Say{V: 1, ID: custody.NewID(), At: 1, Text: "x"})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := foreign.Marshal()
	var lied, elsewhere []byte // to the reader, but said to be another's, or of another space
	s = start(t, "home", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"messages":[{"seq":1,"author":%q,"envelope":%s},{"seq":2,"envelope":{}},{"seq":3},{"seq":4,"author":"x","envelope":%s},{"seq":5,"author":%q,"envelope":%s}],"cursor":5}`,
			i.ID(), text, lied, i.ID(), elsewhere)
	})
	c, me := dial(t, s)
	for _, to := range []struct {
		space string
		text  *[]byte
	}{{"home", &lied}, {"work", &elsewhere}} {
		e, err := i.SealMessage(me.Public(), nil, custody.Header{Space: to.space, Thread: "t"}, &custody.Say{V: 1, ID: custody.NewID(), At: 1, Text: "x"})
		if err != nil {
			t.Fatal(err)
		}
		*to.text, _ = e.Marshal()
	}
	if page, err := c.Since(t.Context(), 0); err != nil || len(page.Messages) != 0 || page.Cursor != 5 {
		t.Errorf("%+v %v", page, err)
	}
}

// TestHostileStream: a stream that sends twice, backwards or nonsense delivers each message
// once and in order, and is dialled again with pauses.
func TestHostileStream(t *testing.T) {
	var c *client.Client
	var i *custody.Identity
	dials := make(chan time.Time, 100)
	s := start(t, "home", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		select {
		case dials <- time.Now():
		default:
		}
		_, hello, err := conn.Read(r.Context())
		if err != nil || r.URL.RawQuery != "" || r.Header.Get("Authorization") != "" {
			t.Errorf("%v", err)
		}
		var h struct {
			Session string
			Cursor  int64
		}
		if err := json.Unmarshal(hello, &h); err != nil || h.Session == "" {
			t.Errorf("%s %v", hello, err)
		}
		frame := func(seq int64) string {
			e, err := i.SealMessage(i.Public(), nil, custody.Header{Space: "home", Thread: "t"}, &custody.Say{V: 1, ID: custody.NewID(), At: 1, Text: "x"})
			if err != nil {
				t.Error(err)
			}
			text, _ := e.Marshal()
			return fmt.Sprintf(`{"seq":%d,"author":%q,"envelope":%s}`, seq, i.ID(), text)
		}
		for _, f := range []string{frame(h.Cursor + 1), frame(h.Cursor + 1), frame(max(h.Cursor, 1)), `{"seq":9000,"author":"x"}`, `{"cursor":-5}`, frame(h.Cursor + 2), `nonsense`} {
			if conn.Write(r.Context(), websocket.MessageText, []byte(f)) != nil {
				return
			}
		}
		time.Sleep(5 * time.Millisecond)
	})
	c, i = dial(t, s)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	last := int64(0)
	err := c.Receive(ctx, 0, func(_ context.Context, m *client.Message) error {
		if m.Seq != last+1 {
			return fmt.Errorf("after %d came %d", last, m.Seq)
		}
		if last = m.Seq; last == 6 {
			stop()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || last != 6 {
		t.Errorf("to %d: %v", last, err)
	}
	if n := len(dials); n != 3 {
		t.Errorf("%d dials", n)
	}
}

// FuzzParseLinkCode: what is read is shown as what is read again.
func FuzzParseLinkCode(f *testing.F) {
	f.Add(client.NewLinkCode().Show())
	f.Add("abcd efgh ijkl mnop")
	f.Add("AAAA-AAAA-AAAA-AAA1")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		code, err := client.ParseLinkCode(s)
		if err != nil {
			return
		}
		if again, err := client.ParseLinkCode(code.Show()); err != nil || again != code || len(code.Show()) != 19 {
			t.Fatalf("%v", err)
		}
	})
}
