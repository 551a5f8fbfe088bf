package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"

	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance/client"
	"github.com/elevenmessenger/connect/integrations"
)

// What the provider gives has the form that Stripe's own server asks for.
const endAccess = "rk_test_SENTINELaccess0001"

const endRefund = `{"charge":"ch_123","amount":40}`

// An endCast is who takes part, with Ada's connection to Stripe.
type endCast struct {
	*endStage
	sidecar       *endProcess
	ada, mallory  *endMember
	helper, other *client.Member
	conn          *custody.Credential
	preview       *integrations.Result // the charge, as it is when the test begins
}

// newEndCast starts all, up to a member who has connected her account.
func newEndCast(t *testing.T) *endCast {
	t.Helper()
	s := &endCast{endStage: newEndStage(t)}
	s.sidecar = s.starts("one.sock")
	s.ada, s.mallory = s.joins("Ada"), s.joins("Mallory")
	s.helper, s.other = s.ada.record("helper"), s.ada.record("other")
	s.ada.bot, s.mallory.bot = s.helper, s.helper
	if err := s.ada.c.NewThread(t.Context(), endThread, s.mallory.id.ID(), s.helper.ID, s.other.ID); err != nil {
		t.Fatal(err)
	}
	s.conn = s.ada.connects("stripe", endAccess)
	// The viewer says whose account it is; it is the next generation of the blob.
	var viewer struct{ ID string }
	if err := json.Unmarshal(s.ada.reads(s.conn, s.registry.Get("stripe").Viewer, `{}`).JSON, &viewer); err != nil || viewer.ID == "" {
		t.Fatalf("the viewer says nothing: %v", err)
	}
	next := *s.conn
	next.Generation, next.Account = 2, &custody.Account{ID: viewer.ID, Label: viewer.ID}
	s.conn = s.ada.stores(&next)
	s.preview = s.ada.reads(s.conn, "get_charge", `{"charge":"ch_123"}`)
	return s
}

// refund is a refund that Ada has read and tapped.
func (s *endCast) refund() *endOrder { return s.ada.grants(s.conn, "refund", endRefund, s.preview) }

// proposes has the bot propose an operation, and returns what Ada makes of it: the call, and
// the words of the preview that she was shown.
func (s *endCast) proposes(op, args string) (*integrations.Call, string) {
	t := s.t
	t.Helper()
	device := s.device("helper")
	s.ada.says(s.helper.Key, &custody.Say{Text: "please give back 40 of ch_123"})
	asked := new(custody.Say)
	if err := device.id.OpenMessage(device.awaits(custody.PurposeSay, "", 1), s.ada.id.Public(), nil, asked); err != nil || asked.Text == "" {
		t.Fatalf("the bot reads %q: %v", asked.Text, err)
	}
	device.says(s.ada.id.Public(), &custody.Say{Text: "May I?", Propose: &custody.Proposal{Service: "stripe", Op: op, Args: json.RawMessage(args)}})
	said := new(custody.Say)
	e := s.ada.awaits(custody.PurposeSay, "", 1)
	if err := s.ada.id.OpenMessage(e, s.helper.Key, nil, said); err != nil || said.Propose == nil {
		t.Fatalf("the proposal does not open: %v", err)
	}
	if err := s.saw(s.mallory.id.OpenMessage(e, s.helper.Key, nil, new(custody.Say))); !errors.Is(err, custody.ErrNotMine) {
		t.Errorf("Mallory opens what is Ada's: %v", err)
	}
	call := s.binds(s.registry.Get(said.Propose.Service), said.Propose.Op, string(said.Propose.Args))
	words, err := call.Say(s.preview)
	if err != nil {
		t.Fatal(err)
	}
	return call, words
}

// touched runs f, and holds what reached the provider while it ran: so many requests, so many
// of them changes.
func (s *endCast) touched(t *testing.T, requests, changes int, f func()) []endRequest {
	t.Helper()
	before := len(s.provider.requests(0))
	f()
	came := s.provider.requests(before)
	if len(came) != requests || writes(came) != changes {
		t.Fatalf("the provider was asked %d times, %d of them changes; want %d and %d", len(came), writes(came), requests, changes)
	}
	return came
}

// TestServiceOpEndToEnd is the way of one change, and each way in which it must not run.
func TestServiceOpEndToEnd(t *testing.T) {
	s := newEndCast(t)
	s.settle()
	s.part("a change", s.change)
	s.part("refused", s.refused)
	s.part("a grant to read covers no change", s.readGrants)
	s.part("replayed", s.replayed)
	s.part("two at once", s.twoAtOnce)
	s.part("a power cut", s.powerCut)
	s.part("the sentinel", s.sweepAll)
}

// change is the whole way, once, as it should be.
func (s *endCast) change(t *testing.T) {
	call, words := s.proposes("refund", endRefund)
	if got, want := call.Sentence().Text, "Refund the charge ch_123 in Stripe? Only a part: 40 in the currency's smallest unit."; got != want {
		t.Errorf("she reads %q, want %q", got, want)
	}
	if want := "It brought 1.00 USD on "; !strings.HasPrefix(words, want) {
		t.Errorf("the preview says %q, want %q…", words, want)
	}
	o := s.refund()
	if o.grant.Once.Preview == nil || !o.grant.Refresh.IsZero() {
		t.Error("the grant lacks the preview, or lends a key that is not needed")
	}
	var r *custody.Result
	came := s.touched(t, 2, 1, func() { r = s.ada.sends(o) })
	var refund struct{ ID, Status, Currency string }
	if err := json.Unmarshal(r.Result, &refund); err != nil || !r.OK || r.ID != o.id || !strings.HasPrefix(refund.ID, "re_") || refund.Status == "" {
		t.Fatalf("the outcome is %+v %s", r.Error, r.Result)
	}
	if look := came[0]; look.method != http.MethodGet || look.uri != "/v1/charges/ch_123" {
		t.Errorf("first came %s %s, want the preview again", look.method, look.uri)
	}
	form, err := url.ParseQuery(came[1].body)
	if err != nil || came[1].method != http.MethodPost || came[1].host != "api.stripe.com" || came[1].uri != "/v1/refunds" ||
		len(form) != 2 || form.Get("charge") != "ch_123" || form.Get("amount") != "40" || came[1].header.Get("Idempotency-Key") == "" {
		t.Errorf("the change is %s %s%s with %q (%v)", came[1].method, came[1].host, came[1].uri, form, err)
	}
	for _, r := range came {
		if got := r.header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+endAccess {
			t.Errorf("%s %s is authorized %d times, or by another token", r.method, r.uri, len(got))
		}
	}
	if n := len(s.mallory.heard(custody.PurposeResult, "")); n != 0 {
		t.Errorf("%d results are in Mallory's log", n)
	}
	page, err := s.ada.c.SinceIn(t.Context(), endThread, 0)
	if err != nil {
		t.Fatal(err)
	}
	results := 0
	for _, m := range page.Messages {
		if m.Envelope.Purpose == custody.PurposeResult && m.Envelope.Op == o.id {
			results++
		}
	}
	if results != 1 {
		t.Errorf("the instance has %d results of it", results)
	}
}

// refused is every way in which what was tapped is not what came. None of it reaches the
// provider with a change.
func (s *endCast) refused(t *testing.T) {
	stripe := s.registry.Get("stripe")
	edited := func(from, to string) *integrations.Manifest {
		t.Helper()
		raw := bytes.Replace(stripe.Raw(), []byte(from), []byte(to), 1)
		reg, err := integrations.Load(fstest.MapFS{"stripe.json": {Data: raw}})
		if err != nil || bytes.Equal(raw, stripe.Raw()) {
			t.Fatalf("the manifest is written otherwise now; mend this test (%v)", err)
		}
		return reg.Get("stripe")
	}
	by := func(now time.Time, m *integrations.Manifest, preview *integrations.Result) *endOrder {
		t.Helper()
		return s.ada.grantsAt(now, m, s.conn, "refund", endRefund, preview)
	}
	with := func(f func(*endOrder)) *endOrder { o := s.refund(); f(o); return o }
	args := func(text string) *endOrder {
		return with(func(o *endOrder) { o.args = json.RawMessage(text) })
	}
	refunded := []byte(`"amount_refunded":0`)
	if !bytes.Contains(s.preview.JSON, refunded) {
		t.Fatalf("the preview is written otherwise now; mend this test: %s", s.preview.JSON)
	}
	for _, c := range []struct {
		name, code string
		looks      int // at the preview
		order      *endOrder
	}{
		{"expired", "expired", 0, by(time.Now().Add(-3*time.Minute), stripe, s.preview)},
		{"not begun", "expired", 0, by(time.Now().Add(45*time.Second), stripe, s.preview)},
		{"confirmed before the bot's start", "restarted", 0, by(time.Now().Add(-time.Minute), stripe, s.preview)},
		{"another bot's grant", "not_mine", 0, with(func(o *endOrder) { o.bot = s.other.Key })},
		{"another service", "service", 0, with(func(o *endOrder) {
			o.service, o.op, o.args = "github", "open_issue", json.RawMessage(openIssue)
		})},
		{"another service, and no such operation there", "service", 0, with(func(o *endOrder) { o.service = "dnsimple" })},
		{"another operation", "access", 0, with(func(o *endOrder) { o.op, o.args = "void_invoice", json.RawMessage(`{"invoice":"in_123"}`) })},
		{"another operation, which reads", "access", 0, with(func(o *endOrder) { o.op, o.args = "whoami", json.RawMessage(`{}`) })},
		{"the grant of another message", "author", 0, with(func(o *endOrder) { o.lent = s.ada.lends(s.refund()) })},
		{"the grant of another thread", "author", 0, with(func(o *endOrder) {
			x := *o
			x.thread = "cellar"
			o.lent = s.ada.lends(&x)
		})},
		{"another amount", "consent", 0, args(`{"charge":"ch_123","amount":4000}`)},
		{"another charge", "consent", 0, args(`{"charge":"ch_124","amount":40}`)},
		{"one arg more", "consent", 0, args(`{"charge":"ch_123","amount":40,"reason":"duplicate"}`)},
		{"one arg less", "consent", 0, args(`{"charge":"ch_123"}`)},
		{"another sentence", "consent", 0, with(func(o *endOrder) { o.grant.Once.Say = sha256.Sum256([]byte("Refund nothing?")) })},
		{"an operation that is written otherwise", "consent", 0,
			by(ahead(), edited(`"fields":["id","status",{"path":"amount"`, `"fields":["id",{"path":"amount"`), s.preview)},
		{"a sentence that is written otherwise", "consent", 0,
			by(ahead(), edited(`"Refund the charge {charge} in Stripe?"`, `"Look at the charge {charge} in Stripe?"`), s.preview)},
		{"no preview was shown", "consent", 0, with(func(o *endOrder) { o.grant.Once.Preview = nil })},
		{"another preview was shown", "consent", 1,
			by(ahead(), stripe, &integrations.Result{JSON: bytes.Replace(s.preview.JSON, refunded, []byte(`"amount_refunded":1`), 1)})},
	} {
		s.part(c.name, func(t *testing.T) {
			s.touched(t, c.looks, 0, func() {
				if r := s.ada.sends(c.order); r.OK || outcome(r) != c.code || r.Result != nil {
					t.Errorf("it is answered %q %s, want %q", outcome(r), r.Result, c.code)
				}
			})
		})
	}
	s.part("the charge changes after the tap", func(t *testing.T) {
		o := s.refund()
		defer s.provider.says(func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			w.Write(bytes.Replace(s.preview.JSON, refunded, []byte(`"amount_refunded":40`), 1))
			return true
		})()
		s.touched(t, 1, 0, func() {
			if r := s.ada.sends(o); outcome(r) != "consent" {
				t.Errorf("it is answered %q", outcome(r))
			}
		})
	})
	s.part("ended", func(t *testing.T) {
		o := s.refund()
		end := &custody.End{At: time.Now().Unix(), Grants: []string{o.grant.ID}}
		e, err := s.ada.id.SealMessage(s.helper.Key, nil, custody.Header{Space: endSpace, Thread: endThread}, end)
		if err != nil {
			t.Fatal(err)
		}
		// Brought, not posted: of two messages of a log the sidecar may handle the second first.
		if status, code, _ := s.sidecar.brings(t, s.ada.id.Public(), e); status != http.StatusOK {
			t.Fatalf("the end is answered %d %s", status, code)
		}
		s.touched(t, 0, 0, func() {
			if r := s.ada.sends(o); outcome(r) != "ended" {
				t.Errorf("it is answered %q", outcome(r))
			}
		})
	})
	s.part("another author", s.anotherAuthor)
}

// anotherAuthor is Mallory, who has got hold of what Ada sealed.
func (s *endCast) anotherAuthor(t *testing.T) {
	o := s.refund()
	whole := s.ada.seals(o)
	lifted := *o
	lifted.lent = s.ada.lends(o)
	s.touched(t, 0, 0, func() {
		// Her own op around Ada's grant.
		if r := s.mallory.sends(&lifted); outcome(r) != "author" {
			t.Errorf("it is answered %q", outcome(r))
		}
		// Ada's message: the instance does not take it from her, and where one did, the sidecar
		// would not.
		var refused *client.Error
		if _, err := s.mallory.c.Post(t.Context(), "", whole, time.Time{}); !errors.As(s.saw(err), &refused) || refused.Code != "not_yours" {
			t.Errorf("the instance takes it: %v", err)
		}
		if status, code, _ := s.sidecar.brings(t, s.mallory.id.Public(), whole); status != http.StatusForbidden || code != "forged" {
			t.Errorf("the sidecar answers %d %s", status, code)
		}
		// One that she made, in Ada's name.
		forged := *s.mallory.seals(&lifted)
		forged.From = s.ada.id.ID()
		if status, code, _ := s.sidecar.brings(t, s.ada.id.Public(), &forged); status != http.StatusForbidden || code != "forged" {
			t.Errorf("the sidecar answers %d %s", status, code)
		}
	})
}
