package instance_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance"
	"github.com/elevenmessenger/connect/instance/client"
	"github.com/elevenmessenger/connect/integrations"
)

// forms are the ways in which a secret could be written down: raw, hex, percent-encoded, and
// base64 of both alphabets at each place among its groups of three.
func forms(secret []byte) map[string][]byte {
	out := map[string][]byte{"raw": secret, "hex": []byte(hex.EncodeToString(secret)), "HEX": []byte(strings.ToUpper(hex.EncodeToString(secret)))}
	var percent bytes.Buffer
	for _, b := range secret {
		fmt.Fprintf(&percent, "%%%02X", b)
	}
	out["percent"] = percent.Bytes()
	for shift := range 3 {
		for name, enc := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			text := enc.EncodeToString(append(make([]byte, shift), secret...))
			out[fmt.Sprintf("%s at %d", name, shift)] = []byte(text[4 : len(text)-4])
		}
	}
	return out
}

// A secretThing is something that may be in no file of the instance.
type secretThing struct {
	name  string
	value []byte
}

func privateParts(t testing.TB, name string, i *custody.Identity) []secretThing {
	t.Helper()
	der, err := i.MarshalPKCS8()
	if err != nil {
		t.Fatal(err)
	}
	// The private number stands at a fixed place in PKCS #8 of P-256.
	at := bytes.Index(der, []byte{0x02, 0x01, 0x01, 0x04, 0x20})
	if at < 0 {
		t.Fatal("no private number in PKCS #8")
	}
	return []secretThing{{name + ", PKCS #8", der}, {name + ", the number", der[at+5 : at+37]}}
}

// TestHoldsNothingThatOpens runs a whole conversation: a member connects, lends a grant, the
// bot answers and hands back, a second device is linked. Then it does what a thief of the
// database would: it looks for every secret in every form in every file, its log included, and
// tries to open every envelope with everything that is there.
func TestHoldsNothingThatOpens(t *testing.T) {
	p := start(t, func(c *instance.Config) { c.Invite = "MARKER-invite-0123456789" })
	ctx := t.Context()
	mark := func(s string) string { return "MARKER-" + s + "-0123456789abcdef" }
	secrets := []secretThing{{"invite", []byte("MARKER-invite-0123456789")}}
	secret := func(s string) string {
		secrets = append(secrets, secretThing{s, []byte(mark(s))})
		return mark(s)
	}
	enter := func(kind string) *party {
		i := identity(t)
		secrets = append(secrets, privateParts(t, kind, i)...)
		c, err := client.Dial(ctx, p.URL, i, client.Options{Space: space, Join: &client.Join{Kind: kind, Name: kind, Invite: "MARKER-invite-0123456789"}})
		if err != nil {
			t.Fatal(err)
		}
		s := p.session(t, i)
		secrets = append(secrets, secretThing{"a session", []byte(s)})
		return &party{c, i, s}
	}
	anna, bot := enter("member"), enter("bot")
	day := identity(t)
	secrets = append(secrets, privateParts(t, "day", day)...)
	if err := bot.PublishDay(ctx, day.Public(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := anna.NewThread(ctx, "t1", bot.ID()); err != nil {
		t.Fatal(err)
	}
	// Her key, and a connection, as blobs.
	copyOf, err := anna.SealIdentity(anna.Public(), space)
	if err != nil {
		t.Fatal(err)
	}
	if err := anna.PutBlob(ctx, "identity", 0, 1, copyOf); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	cred := &custody.Credential{V: 1, ID: "c1", Generation: 1, Pair: 1, Service: "github", Kind: custody.KindOAuth, Secret: integrations.NewSecret(secret("access")),
		Refresh: integrations.NewSecret("rt1.k1." + secret("refresh")), Broker: "https://connect.example", ExpiresAt: now.Add(time.Hour).Unix(), ObtainedAt: now.Unix(),
		Cap: integrations.Write, ConnectedAt: now.Unix(), Account: &custody.Account{ID: "1", Label: secret("account")}}
	blob, err := cred.Seal(anna.Identity, space)
	if err != nil {
		t.Fatal(err)
	}
	if err := anna.PutBlob(ctx, cred.ID, 0, 1, blob); err != nil {
		t.Fatal(err)
	}
	// An op with its grant, sealed to the key of the day as well, and a grant by itself.
	op := custody.NewID()
	dayKey := day.Public()
	grant, err := anna.Seal(bot.Public(), &dayKey, custody.Header{Purpose: custody.PurposeGrant, Space: space, Thread: "t1", Op: op}, []byte(`{"secret":"`+secret("granted")+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	args := json.RawMessage(`{"title":"` + secret("args") + `"}`)
	ask, err := anna.SealMessage(bot.Public(), &dayKey, custody.Header{Space: space, Thread: "t1", Op: op}, &custody.Op{V: 2, ID: op, Service: "github", Op: "open_issue", Args: args, Grant: grant})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := anna.Post(ctx, "", ask, now.Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	standing, err := anna.Seal(bot.Public(), nil, custody.Header{Purpose: custody.PurposeGrant, Space: space, Thread: "t1"}, []byte(`{"secret":"`+secret("standing")+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := anna.Post(ctx, "", standing, now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	// The bot takes it and answers, with a rotated pair.
	page, err := bot.Since(ctx, 0)
	if err != nil || len(page.Messages) != 2 {
		t.Fatalf("%+v %v", page, err)
	}
	var got custody.Op
	if err := bot.OpenMessage(page.Messages[0].Envelope, anna.Public(), day, &got); err != nil || string(got.Args) != string(args) {
		t.Fatalf("%s %v", got.Args, err)
	}
	if _, err := bot.Open(got.Grant, anna.Public(), day); err != nil {
		t.Fatal(err)
	}
	back := &custody.Handback{V: 1, Credential: "c1", Pair: 2, Secret: integrations.NewSecret(secret("rotated")), Refresh: integrations.NewSecret("rt1.k1." + secret("next")), ExpiresAt: now.Add(time.Hour).Unix(), ObtainedAt: now.Unix()}
	if err := back.Sign(cred.Refresh); err != nil {
		t.Fatal(err)
	}
	for n, m := range []custody.Message{&custody.Result{V: 2, ID: op, OK: true, Result: json.RawMessage(`{"title":"` + secret("result") + `"}`)}, back} {
		h := custody.Header{Space: space, Thread: "t1", Op: op}
		if _, err := bot.Post(ctx, ids(n), seal(t, bot.Identity, anna.Public(), h, m), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := anna.Post(ctx, "", say(t, anna.Identity, bot.Public(), "t1", secret("said")), time.Time{}); err != nil {
		t.Fatal(err)
	}
	came := 0
	reading, stop := context.WithCancel(ctx)
	anna.Receive(reading, 0, func(_ context.Context, m *client.Message) error {
		if came++; came == 2 {
			stop()
		}
		return nil
	})
	stop()
	if came != 2 {
		t.Fatalf("%d messages came", came)
	}
	next, err := cred.Take(back)
	if err != nil {
		t.Fatal(err)
	}
	if blob, err = next.Seal(anna.Identity, space); err != nil {
		t.Fatal(err)
	}
	if err := anna.PutBlob(ctx, "c1", 1, next.Generation, blob); err != nil {
		t.Fatal(err)
	}
	// A second device.
	code := client.NewLinkCode()
	secrets = append(secrets, secretThing{"the link's code", []byte(strings.ReplaceAll(code.Show(), "-", ""))}, secretThing{"the code as shown", []byte(code.Show())})
	linked := make(chan error, 1)
	go func() { linked <- anna.Link(ctx, code) }()
	var device *custody.Identity
	eventually(t, "linked", func() bool {
		device, err = client.Linked(ctx, p.URL, code, client.Options{})
		return err == nil
	})
	if err := <-linked; err != nil || device.ID() != anna.ID() {
		t.Fatal(err)
	}

	files := storeFiles(t, p.db)
	look := func(in map[string][]byte) {
		t.Helper()
		for name, data := range in {
			for _, s := range secrets {
				for form, bytesOf := range forms(s.value) {
					if bytes.Contains(data, bytesOf) {
						t.Errorf("%s holds %s, %s", filepath.Base(name), s.name, form)
					}
				}
			}
			if bytes.Contains(data, []byte("MARKER")) {
				t.Errorf("%s holds a marker", filepath.Base(name))
			}
		}
	}
	look(files)
	look(map[string][]byte{"the log": []byte(p.log.String())})
	if !bytes.Contains(bytes.Join([][]byte{files[p.db], files[p.db+"-wal"]}, nil), []byte(string(anna.ID()))) {
		t.Fatal("the files do not hold what they should: this test would see nothing")
	}
	thief(t, files, p.db, []*custody.Identity{anna.Identity, bot.Identity, day})
}

// thief opens a copy of the database and tries every value in it as a key.
func thief(t *testing.T, files map[string][]byte, path string, owners []*custody.Identity) {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, filepath.Base(path)))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var values [][]byte
	var envelopes []*custody.Envelope
	var tables []string
	rows, err := db.Query("SELECT name FROM sqlite_schema WHERE type = 'table'")
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		tables = append(tables, name)
	}
	if err := rows.Err(); err != nil || len(tables) < 9 {
		t.Fatalf("%v %v", tables, err)
	}
	for _, table := range tables {
		rows, err := db.Query("SELECT * FROM " + table)
		if err != nil {
			t.Fatal(err)
		}
		columns, _ := rows.Columns()
		for rows.Next() {
			row := make([]sql.RawBytes, len(columns))
			at := make([]any, len(columns))
			for n := range row {
				at[n] = &row[n]
			}
			if err := rows.Scan(at...); err != nil {
				t.Fatal(err)
			}
			for _, v := range row {
				v := bytes.Clone(v)
				values = append(values, v)
				if e, err := custody.ParseEnvelope(v); err == nil {
					envelopes = append(envelopes, e)
					values = append(values, e.CT, e.Tag)
				} else if raw, err := base64.RawURLEncoding.DecodeString(string(v)); err == nil {
					values = append(values, raw)
				}
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if len(envelopes) != 7 { // two blobs, an op, a grant, a result, a hand-back, a say
		t.Errorf("%d envelopes are stored", len(envelopes))
	}
	// Every stretch of 32 bytes is a private key, nearly always: each is tried.
	prefix := pkcs8Prefix(t)
	var keys []*custody.Identity
	for _, v := range values {
		if i, err := custody.ParseIdentity(v); err == nil {
			keys = append(keys, i)
		}
		for at := 0; at+32 <= len(v); at += 32 {
			if i, err := custody.ParseIdentity(append(bytes.Clone(prefix), v[at:at+32]...)); err == nil {
				keys = append(keys, i)
			}
		}
	}
	if len(keys) < 50 {
		t.Errorf("only %d keys were tried", len(keys))
	}
	publics := []custody.PublicKey{}
	for _, o := range owners {
		publics = append(publics, o.Public())
	}
	for _, e := range envelopes {
		opened := false
		for _, k := range keys {
			for _, o := range owners {
				if k.ID() == o.ID() {
					t.Fatal("a private key is in the database")
				}
			}
			for _, from := range publics {
				if _, err := k.Open(e, from, k); err == nil {
					t.Errorf("an envelope for %s opens", e.Purpose)
				}
			}
		}
		for _, o := range owners { // and it is one that its owner opens
			for _, from := range publics {
				if _, err := o.Open(e, from, owners[2]); err == nil {
					opened = true
				}
			}
		}
		if !opened {
			t.Errorf("an envelope for %s does not open for its owner either", e.Purpose)
		}
	}
	t.Logf("%d values, %d envelopes, %d keys tried", len(values), len(envelopes), len(keys))
}

// pkcs8Prefix is what stands before the private number of a key of P-256 that says nothing of
// its public one.
func pkcs8Prefix(t testing.TB) []byte {
	t.Helper()
	prefix, err := hex.DecodeString("3041020100301306072a8648ce3d020106082a8648ce3d030107042730250201010420")
	if err != nil {
		t.Fatal(err)
	}
	i := identity(t)
	number := privateParts(t, "", i)[1].value
	if same, err := custody.ParseIdentity(append(bytes.Clone(prefix), number...)); err != nil || same.ID() != i.ID() {
		t.Fatalf("the form of a key is wrong: this test would try nothing (%v)", err)
	}
	return prefix
}

// TestYesterdaysGrants (G9): a copy of the database and the bot's own key, a day later, open no
// op and no grant that has ended: they are not there. The one that outlives the day is.
func TestYesterdaysGrants(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, bot := p.party(t, "member"), p.party(t, "bot")
	if err := anna.NewThread(ctx, "t1", bot.ID()); err != nil {
		t.Fatal(err)
	}
	// Of a client that knew no key of the day, and of one that forgot to say until when.
	for _, until := range []time.Time{time.Now().Add(2 * time.Minute), {}} {
		op := custody.NewID()
		e, err := anna.Seal(bot.Public(), nil, custody.Header{Purpose: custody.PurposeOp, Space: space, Thread: "t1", Op: op}, []byte("granted"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := anna.Post(ctx, "", e, until); err != nil {
			t.Fatal(err)
		}
	}
	standing, err := anna.Seal(bot.Public(), nil, custody.Header{Purpose: custody.PurposeGrant, Space: space, Thread: "t1"}, []byte("standing"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := anna.Post(ctx, "", standing, time.Now().Add(5*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	p.clock.advance(24 * time.Hour)
	if err := instance.Sweep(p.in); err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, data := range storeFiles(t, p.db) {
		for at := 0; ; {
			n := bytes.Index(data[at:], []byte(`{"v":1,"suite"`))
			if n < 0 {
				break
			}
			at += n
			end := bytes.IndexByte(data[at:], '}')
			if e, err := custody.ParseEnvelope(data[at : at+end+1]); err == nil {
				if _, err := bot.Open(e, anna.Public(), nil); err == nil {
					open++
					if e.CT == nil || !bytes.Equal(e.CT, standing.CT) {
						t.Errorf("an envelope for %s of yesterday opens", e.Purpose)
					}
				}
			}
			at++
		}
	}
	if open != 1 {
		t.Errorf("%d envelopes open, want the standing one", open)
	}
}
