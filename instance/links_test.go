package instance_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance/client"
)

// TestLink: a member's next device gets her key, and logs in with it.
func TestLink(t *testing.T) {
	p := start(t, nil)
	anna := p.party(t, "member")
	code := client.NewLinkCode()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- anna.Link(ctx, code) }()
	typed, err := client.ParseLinkCode(" " + strings.ToLower(code.Show()) + " ")
	if err != nil {
		t.Fatal(err)
	}
	var next *custody.Identity
	for { // the link may not be open yet
		next, err = client.Linked(ctx, p.URL, typed, client.Options{Space: space})
		if !errors.Is(err, client.ErrNotFound) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if next.ID() != anna.ID() {
		t.Error("another key came")
	}
	if c := p.dial(t, next, nil); c == nil {
		t.Error("it does not log in")
	}
	if strings.Contains(p.log.String(), code.Show()[:4]) || fmt.Sprintf("%v %+v %#v %s", code, code, code, code) != "[code] [code] [code] [code]" {
		t.Error("the code is printed")
	}
	if _, err := client.ParseLinkCode("AAAA-AAAA-AAAA-AAA1"); err == nil || strings.Contains(err.Error(), "AAAA") {
		t.Error(err)
	}
}

// TestLinkStranger: who knows a link's id and not its code gets nothing, and whoever answers
// with a key of his own making is found out.
func TestLinkStranger(t *testing.T) {
	p := start(t, nil)
	anna, boris := p.party(t, "member"), p.party(t, "member")
	const id = "AAAAAAAAAAAAAAAAAAAAAA"
	open := func(session string) answer {
		return p.ask(t, "POST", "/api/links", session, map[string]string{"id": id})
	}
	offer := func(key custody.PublicKey, mac []byte) answer {
		return p.ask(t, "POST", "/api/links/"+id+"/offer", "", map[string]any{"key": key, "mac": custody.Bytes(mac)})
	}
	fetch := func(ticket string) answer {
		return p.ask(t, "POST", "/api/links/"+id+"/fetch", "", map[string]string{"ticket": ticket})
	}
	ticketOf := func(a answer) string {
		t.Helper()
		var out struct{ Ticket string }
		if err := json.Unmarshal([]byte(a.body), &out); err != nil || len(out.Ticket) != 43 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		return out.Ticket
	}
	want := func(what string, a answer, status int, code string) {
		t.Helper()
		if a.status != status || a.code != code {
			t.Errorf("%s: %d %s, want %d %s", what, a.status, a.body, status, code)
		}
	}
	mac := make([]byte, 32)
	want("before", offer(identity(t).Public(), mac), 404, "no_such_link")
	want("a bot", p.ask(t, "POST", "/api/links", p.party(t, "bot").session, map[string]string{"id": id}), 403, "a_bot")
	want("a short id", p.ask(t, "POST", "/api/links", anna.session, map[string]string{"id": id[1:]}), 400, "malformed")
	want("open", open(anna.session), 200, "")
	want("a retry", open(anna.session), 200, "")
	want("another's", open(boris.session), 409, "id_taken")
	want("no mac", offer(identity(t).Public(), nil), 400, "malformed")
	device, stranger := identity(t), identity(t)
	code := []byte("ABCDEFGHABCDEFGH")
	m := hmac.New(sha256.New, code)
	m.Write(device.Public().Bytes())
	bad := ticketOf(offer(stranger.Public(), mac))
	good := ticketOf(offer(device.Public(), m.Sum(nil)))
	want("twice", offer(device.Public(), mac), 409, "id_taken")
	want("pending", fetch(good), 409, "pending")
	want("a ticket that is none", fetch(strings.Repeat("A", 43)), 403, "ticket")
	want("another looks", p.ask(t, "GET", "/api/links/"+id, boris.session, nil), 404, "no_such_link")
	want("another ends it", p.ask(t, "DELETE", "/api/links/"+id, boris.session, nil), 404, "no_such_link")
	var offers struct {
		Offers []struct {
			Key custody.PublicKey
			MAC custody.Bytes
		}
	}
	a := p.ask(t, "GET", "/api/links/"+id, anna.session, nil)
	if err := json.Unmarshal([]byte(a.body), &offers); err != nil || len(offers.Offers) != 2 || strings.Contains(a.body, good) {
		t.Fatalf("%s %v", a.body, err)
	}
	answer := func(session string, e *custody.Envelope) answer {
		return p.ask(t, "POST", "/api/links/"+id+"/answer", session, map[string]any{"envelope": marshal(t, e), "mac": custody.Bytes(mac)})
	}
	sealed := func(from *party, to custody.PublicKey) *custody.Envelope {
		e, err := from.SealIdentity(to, space)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	want("another answers", answer(boris.session, sealed(boris, device.Public())), 404, "no_such_link")
	want("sealed to nobody who asked", answer(anna.session, sealed(anna, identity(t).Public())), 400, "reader")
	want("a say", answer(anna.session, say(t, anna.Identity, device.Public(), "", "x")), 400, "purpose")
	e := sealed(anna, device.Public())
	want("answered", answer(anna.session, e), 200, "")
	want("a retry", answer(anna.session, e), 200, "")
	want("answered twice", answer(anna.session, sealed(anna, stranger.Public())), 409, "answered")
	want("too late", offer(identity(t).Public(), mac), 409, "answered")
	want("the stranger", fetch(bad), 403, "ticket")
	a = fetch(good)
	var got struct {
		Key      custody.PublicKey
		Envelope json.RawMessage
	}
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || got.Key.ID() != anna.ID() {
		t.Fatalf("%d %s", a.status, a.body)
	}
	parsed, err := custody.ParseEnvelope(got.Envelope)
	if err != nil {
		t.Fatal(err)
	}
	if i, err := device.OpenIdentity(parsed, got.Key); err != nil || i.ID() != anna.ID() {
		t.Error(err)
	}
	want("once", fetch(good), 404, "no_such_link")

	// Ten minutes, and eight devices.
	want("open", open(anna.session), 200, "")
	for range 8 {
		ticketOf(offer(identity(t).Public(), mac))
	}
	want("the ninth", offer(identity(t).Public(), mac), 403, "full")
	p.clock.advance(10 * time.Minute)
	want("late", offer(identity(t).Public(), mac), 404, "no_such_link")
	want("its owner, late", p.ask(t, "GET", "/api/links/"+id, anna.session, nil), 404, "no_such_link")
	want("anew", open(boris.session), 200, "")
	want("ended", p.ask(t, "DELETE", "/api/links/"+id, boris.session, nil), 200, "")
	want("after its end", offer(identity(t).Public(), mac), 404, "no_such_link")
}

// TestLinkForged: an instance that lies about the member's key is found out by the device.
func TestLinkForged(t *testing.T) {
	p := start(t, nil)
	mallory := p.party(t, "member")
	code := client.NewLinkCode()
	m := hmac.New(sha256.New, []byte(strings.ReplaceAll(code.Show(), "-", "")))
	m.Write([]byte("connect/v1 link"))
	id, _ := custody.Bytes(m.Sum(nil)[:16]).MarshalText()
	path := "/api/links/" + string(id)
	if a := p.ask(t, "POST", "/api/links", mallory.session, map[string]string{"id": string(id)}); a.status != 200 {
		t.Fatal(a.body)
	}
	done := make(chan error, 1)
	go func() {
		_, err := client.Linked(t.Context(), p.URL, code, client.Options{})
		done <- err
	}()
	var open struct {
		Offers []struct{ Key custody.PublicKey }
	}
	eventually(t, "an offer", func() bool {
		json.Unmarshal([]byte(p.ask(t, "GET", path, mallory.session, nil).body), &open)
		return len(open.Offers) == 1
	})
	e, err := mallory.SealIdentity(open.Offers[0].Key, space)
	if err != nil {
		t.Fatal(err)
	}
	if a := p.ask(t, "POST", path+"/answer", mallory.session, map[string]any{"envelope": marshal(t, e), "mac": custody.Bytes(make([]byte, 32))}); a.status != 200 {
		t.Fatal(a.body)
	}
	if err := <-done; !errors.Is(err, client.ErrLinkForged) {
		t.Errorf("an identity of the instance's making: %v", err)
	}
}
