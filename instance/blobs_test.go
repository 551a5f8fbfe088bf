package instance_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance/client"
	"github.com/elevenmessenger/connect/integrations"
)

func credential(t testing.TB, of *custody.Identity, id string, generation int64, secret string) *custody.Envelope {
	t.Helper()
	c := &custody.Credential{V: 1, ID: id, Generation: generation, Pair: 1, Service: "github", Kind: custody.KindPAT,
		Secret: integrations.NewSecret(secret), Cap: integrations.Read, ConnectedAt: time.Now().Unix()}
	e, err := c.Seal(of, space)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestBlobs(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, boris := p.party(t, "member"), p.party(t, "member")
	of := func(generation int64) *custody.Envelope {
		return credential(t, anna.Identity, "c1", generation, "secret")
	}
	if _, err := anna.Blob(ctx, "c1"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
	first := of(1)
	if err := anna.PutBlob(ctx, "c1", 0, 1, first); err != nil {
		t.Fatal(err)
	}
	if err := anna.PutBlob(ctx, "c1", 0, 1, first); err != nil {
		t.Errorf("a retry: %v", err)
	}
	conflict := func(what string, err error, generation int64) {
		t.Helper()
		var e *client.Error
		if !errors.Is(err, client.ErrConflict) || !errors.As(err, &e) || e.Generation != generation {
			t.Errorf("%s: %v", what, err)
		}
	}
	conflict("another first", anna.PutBlob(ctx, "c1", 0, 1, of(1)), 1)
	conflict("a generation ahead", anna.PutBlob(ctx, "c1", 2, 3, of(3)), 1)
	if err := anna.PutBlob(ctx, "c1", 1, 2, of(2)); err != nil {
		t.Fatal(err)
	}
	conflict("the first again", anna.PutBlob(ctx, "c1", 0, 1, first), 2)
	b, err := anna.Blob(ctx, "c1")
	if err != nil || b.Generation != 2 {
		t.Fatalf("%+v %v", b, err)
	}
	if c, err := custody.OpenCredential(anna.Identity, b.Envelope); err != nil || c.Generation != 2 {
		t.Errorf("%+v %v", c, err)
	}
	// Nobody else reads, writes or sees it.
	if _, err := boris.Blob(ctx, "c1"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("another's: %v", err)
	}
	if list, err := boris.Blobs(ctx); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	if err := boris.DeleteBlob(ctx, "c1", 2); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("another deletes: %v", err)
	}
	if err := boris.PutBlob(ctx, "c1", 0, 1, credential(t, boris.Identity, "c1", 1, "his")); err != nil {
		t.Errorf("his own of the same id: %v", err)
	}
	// Deleted is a generation of its own: nothing older comes back.
	conflict("an old one deleted", anna.DeleteBlob(ctx, "c1", 1), 2)
	for range 2 { // and a retry
		if err := anna.DeleteBlob(ctx, "c1", 2); err != nil {
			t.Fatal(err)
		}
	}
	var e *client.Error
	if _, err := anna.Blob(ctx, "c1"); !errors.Is(err, client.ErrDeleted) || !errors.As(err, &e) || e.Generation != 3 {
		t.Errorf("deleted: %v", err)
	}
	conflict("the first again", anna.PutBlob(ctx, "c1", 0, 1, first), 3)
	conflict("over the last that was", anna.PutBlob(ctx, "c1", 2, 3, of(3)), 3)
	conflict("deleted once more", anna.DeleteBlob(ctx, "c1", 3), 3)
	list, err := anna.Blobs(ctx)
	if err != nil || len(list) != 1 || !list[0].Deleted || list[0].Generation != 3 || list[0].Size != 0 {
		t.Errorf("%+v %v", list, err)
	}
	if err := anna.PutBlob(ctx, "c1", 3, 9, of(9)); err != nil {
		t.Errorf("a later one, on purpose: %v", err)
	}
	copyOf, err := anna.SealIdentity(anna.Public(), space)
	if err != nil {
		t.Fatal(err)
	}
	if err := anna.PutBlob(ctx, "identity", 0, 1, copyOf); err != nil {
		t.Error(err)
	}
	if b, err := anna.Blob(ctx, "identity"); err != nil {
		t.Error(err)
	} else if i, err := anna.OpenIdentity(b.Envelope, anna.Public()); err != nil || i.ID() != anna.ID() {
		t.Errorf("%v", err)
	}
}

func TestBlobRefused(t *testing.T) {
	p := start(t, nil)
	anna, boris := p.party(t, "member"), p.party(t, "member")
	own := credential(t, anna.Identity, "c1", 1, "secret")
	other, err := anna.SealIdentity(identity(t).Public(), space)
	if err != nil {
		t.Fatal(err)
	}
	text := string(marshal(t, own))
	put := func(id string, body string) answer { return p.ask(t, "PUT", "/api/blobs/"+id, anna.session, body) }
	for _, c := range []struct {
		name, id, body string
		status         int
		code           string
	}{
		{"no expect", "c1", `{"envelope":` + text + `}`, 400, "malformed"},
		{"expect below 0", "c1", `{"expect":-1,"envelope":` + text + `}`, 400, "malformed"},
		{"expect beyond counting", "c1", `{"expect":4503599627370496,"envelope":` + text + `}`, 400, "malformed"},
		{"a fraction", "c1", `{"expect":0.5,"envelope":` + text + `}`, 400, "malformed"},
		{"not above", "c1", `{"expect":4,"generation":4,"envelope":` + text + `}`, 400, "generation"},
		{"another generation than the envelope's", "c1", `{"expect":0,"generation":2,"envelope":` + text + `}`, 400, "generation"},
		{"another's", "c1", `{"expect":0,"envelope":` + string(marshal(t, credential(t, boris.Identity, "c1", 1, "s"))) + `}`, 403, "not_yours"},
		{"sealed to another", "c1", `{"expect":0,"envelope":` + string(marshal(t, other)) + `}`, 403, "not_yours"},
		{"a say", "c1", `{"expect":0,"envelope":` + string(marshal(t, say(t, anna.Identity, anna.Public(), "t1", "x"))) + `}`, 400, "purpose"},
		{"in clear", "c1", `{"expect":0,"envelope":{"token":"secret"}}`, 400, "envelope"},
		{"too large", "c1", `{"expect":0,"envelope":{` + strings.Repeat(" ", custody.MaxMessage) + text[1:] + `}`, 413, "too_large"},
		{"an id that is none", "a%20b", `{"expect":0,"envelope":` + text + `}`, 404, "not_found"},
		{"a long id", strings.Repeat("a", 65), `{"expect":0,"envelope":` + text + `}`, 400, "malformed"},
	} {
		if a := put(c.id, c.body); a.status != c.status || a.code != c.code {
			t.Errorf("%s: %d %s, want %d %s", c.name, a.status, a.body, c.status, c.code)
		}
	}
	if a := put("c1", `{"expect":0,"envelope":`+text+`}`); a.status != 200 || !strings.Contains(a.body, `"generation":1`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, q := range []string{"", "?expect=", "?expect=0", "?expect=01", "?expect=1&expect=1", "?expect=1&x=1", "?expect=-1", "?expect=x", "?expect=%zz"} {
		if a := p.ask(t, "DELETE", "/api/blobs/c1"+q, anna.session, nil); a.status != 400 || a.code != "malformed" {
			t.Errorf("%s: %d %s", q, a.status, a.body)
		}
	}
}

// TestOneDeviceWins: of many devices that replace one generation at once, one does.
func TestOneDeviceWins(t *testing.T) {
	p := start(t, nil)
	_, anna := p.join(t, "member")
	const devices = 8
	var clients [devices]*client.Client
	var envelopes [devices]*custody.Envelope
	for n := range devices {
		clients[n] = p.dial(t, anna, nil)
		envelopes[n] = credential(t, anna, "c1", 1, fmt.Sprint("secret", n))
	}
	var wg sync.WaitGroup
	errs := make([]error, devices)
	for n := range devices {
		wg.Go(func() { errs[n] = clients[n].PutBlob(t.Context(), "c1", 0, 1, envelopes[n]) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, client.ErrConflict) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d devices won", won)
	}
}
