package sidecar

import (
	"context"
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// FuzzHandle: a message is taken apart without a panic; one whose tag its sender did not make
// gets no answer; and whatever a member herself writes, into an op, a grant, an end, an ack or
// a revoke, nothing is changed at the provider without her consent to it.
func FuzzHandle(f *testing.F) {
	s := newStage(f)
	s.provider.answer(me)
	s.broker.answer(jsonAnswer(503, `{"class":"temporary"}`))
	c := s.connection("github", integrations.Read, 0)
	o := s.order(c, "whoami", `{}`)
	d := s.delivery(o)
	grant := must(o.grant.Seal(s.ada, s.bot.Public(), nil, testSpace, testThread, o.id))
	kept := s.kept(c, custody.GrantRequest{Use: custody.UseStanding, Charter: "c", Ops: []string{"whoami"}, Window: &custody.Window{Days: []string{"mon"}, From: "08:00", To: "07:00", TZ: "UTC"}}, "whoami", `{}`)
	keptGrant := must(kept.grant.Seal(s.ada, s.bot.Public(), nil, testSpace, testThread, ""))
	known := []string{string(must(custody.ParseEnvelope(d.Data)).Tag)}
	f.Add(0, d.Data)
	for _, x := range []Delivery{s.posts(s.ada, custody.Header{}, &custody.Ack{Credential: "c1", Pair: 1}), s.posts(s.ada, custody.Header{}, &custody.End{At: 1, Credential: "c1"}), s.revokes(c)} {
		f.Add(0, x.Data)
		known = append(known, string(must(custody.ParseEnvelope(x.Data)).Tag))
	}
	for _, g := range []*custody.Envelope{grant, keptGrant} {
		f.Add(1, []byte(`{"v":2,"id":"`+o.id+`","service":"github","op":"whoami","args":{},"grant":`+string(must(g.Marshal()))+`}`))
		f.Add(1, []byte(`{"v":3,"id":"`+o.id+`","service":"github","op":"open_issue","args":`+openIssue+`,"grant":`+string(must(g.Marshal()))+`}`))
	}
	once := must(json.Marshal(o.grant.Once))
	f.Add(2, []byte(`{"v":1,"id":"`+o.grant.ID+`","service":"github","access":"read","use":"once","iat":1,"exp":99,"kind":"oauth","secret":"at1-fake","credential":"c1","pair":1,"once":`+string(once)+`}`))
	f.Add(2, []byte(`{"v":1,"id":"`+o.grant.ID+`","service":"github","access":"write","use":"asks","iat":4000000000,"exp":4000000060,"kind":"pat","secret":"at1-fake","credential":"c1","pair":4503599627370496,"ops":{"open_issue":"AAAA"}}`))
	f.Add(3, []byte(`{"at":1790000000,"grants":["`+o.grant.ID+`"],"pause":253402300799}`))
	f.Add(3, []byte(`{"at":253402300799,"credential":"c1"}`))
	f.Add(4, []byte(`{"credential":"c1","pair":4503599627370496}`))
	f.Add(5, []byte(`{"v":1,"id":"`+o.id+`","service":"github","grant":`+string(must(grant.Marshal()))+`}`))
	purposes := []custody.Purpose{"", custody.PurposeOp, custody.PurposeOp, custody.PurposeEnd, custody.PurposeAck, custody.PurposeRevoke}
	f.Fuzz(func(t *testing.T, mode int, data []byte) {
		s.forget()
		x := Delivery{Space: testSpace, Thread: testThread, Author: s.ada.Public(), Data: data}
		mode = max(mode, 0) % len(purposes)
		if mode > 0 {
			h := custody.Header{Purpose: purposes[mode], Space: testSpace, Thread: testThread}
			if h.Purpose == custody.PurposeOp || h.Purpose == custody.PurposeRevoke {
				h.Op = o.id
			}
			if mode == 2 {
				h.Purpose = custody.PurposeGrant
				g, err := s.ada.Seal(s.bot.Public(), nil, h, data)
				if err != nil {
					return
				}
				h.Op, h.Purpose = custody.NewID(), custody.PurposeOp // so that it is not answered from memory
				g.Op = h.Op
				data = []byte(`{"v":2,"id":"` + h.Op + `","service":"github","op":"open_issue","args":` + openIssue + `,"grant":` + string(must(g.Marshal())) + `}`)
			}
			e, err := s.ada.Seal(s.bot.Public(), nil, h, data)
			if err != nil {
				return
			}
			x.Data = must(e.Marshal())
		}
		all, err := s.Handle(context.Background(), x)
		if mode == 0 && err == nil {
			e, perr := custody.ParseEnvelope(x.Data)
			if perr != nil || !slices.Contains(known, string(e.Tag)) {
				t.Errorf("a forged message got %d answers", len(all))
			}
		}
		for _, e := range all {
			r := new(custody.Result)
			if err := s.ada.OpenMessage(e, s.bot.Public(), nil, r); err != nil {
				t.Errorf("an answer does not open: %v", err)
			}
		}
		for _, r := range s.provider.requests() {
			if r.Method != "GET" {
				t.Errorf("the provider saw %s %s", r.Method, r.URI)
			}
		}
	})
}

// FuzzLegacy: an op of before, the grant in it, and what the provider answers; there is one
// answer of bounded length, or none, and the provider is only read.
func FuzzLegacy(f *testing.F) {
	s := newStage(f)
	f.Add(0, s.before("at-fake"), []byte(`{"data":[{"id":1,"name":"blip.com","expires_at":"2027-01-01T00:00:00Z"}],"pagination":{"current_page":1,"total_pages":1}}`))
	f.Add(0, []byte(`{"type":"connect.op","id":"x","op":"list","grant":"AAAA"}`), []byte(`[]`))
	f.Add(1, []byte(`{"token":"at-fake","expires_at":4000000000}`), []byte(`{"data":[{"id":1,"email":"a@b.example"},{"id":2}]}`))
	f.Add(1, []byte(`{"token":"","expires_at":-1}`), []byte(`{"data":{"account":{"id":1}}}`))
	bot := must(hpke.NewDHKEMPublicKey(must(ecdh.P256().NewPublicKey(s.bot.Public().Bytes()))))
	f.Fuzz(func(t *testing.T, mode int, data, answer []byte) {
		s.forget()
		s.provider.answer(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Write(answer)
		})
		if mode == 1 {
			sealed := must(hpke.Seal(bot, hpke.HKDFSHA256(), hpke.AES256GCM(), nil, data))
			data = must(json.Marshal(map[string]any{"type": "connect.op", "id": "x", "op": "list", "grant": custody.Bytes(sealed)}))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		out, err := s.HandleLegacy(ctx, s.bot.Public().ID(), s.ada.Public().ID(), data)
		if err == nil {
			var r custody.LegacyResult
			if err := json.Unmarshal(out, &r); err != nil || r.Type != "connect.result" || r.OK == (r.Error != "") || len(out) > custody.MaxMessage {
				t.Errorf("%d bytes %.200s: %v", len(out), out, err)
			}
		}
		for _, r := range s.provider.requests() {
			if r.Method != "GET" {
				t.Errorf("the provider saw %s %s", r.Method, r.URI)
			}
		}
	})
}

// FuzzBrokerAnswer: whatever a broker answers, in clear or sealed, there is one result; and a
// pair that is in order always reaches its member, who can take it.
func FuzzBrokerAnswer(f *testing.F) {
	s := newStage(f)
	s.provider.answer(me)
	f.Add(true, 200, "", []byte(`{"secret":"at2-fake","refresh":"rt1.k.fake2","same":false,"expires_in":3600}`))
	f.Add(true, 200, "", []byte(`{"secret":"at2-fake","refresh":"rt1.k.fake2","same":true,"expires_in":4503599627370496,"scopes":["a"],"keep":{"x":"y"}}`))
	f.Add(true, 500, "", []byte(`{"secret":"at2-fake","refresh":"rt1.k.fake2","same":false}`))
	f.Add(true, 200, "", []byte(`{"secret":"","refresh":""}`))
	f.Add(false, 200, "", []byte(`{"secret":"at2-fake","refresh":"rt1.k.fake2","same":false,"expires_in":3600}`))
	f.Add(false, 409, "", []byte(`{"class":"dead","code":"invalid_grant"}`))
	f.Add(false, 429, "99999999999", []byte(`{"class":"temporary","retry_after":-9223372036854775808}`))
	f.Add(false, 429, "Wed, 21 Oct 2099 07:28:00 GMT", []byte(`<html>`))
	f.Add(false, 503, "", []byte(`{"class":"temporary","code":"unknown","retry_after":1e99}`))
	f.Add(false, 401, "", []byte(`{"error":"clock","off_s":900}`))
	fails := []string{custody.CodeTemporary, custody.CodeReconnect, custody.CodeMisconfigured}
	f.Fuzz(func(t *testing.T, sealed bool, status int, after string, data []byte) {
		if status < 200 || status > 599 || strings.ContainsFunc(after, func(r rune) bool { return r < ' ' || r > '~' }) {
			return // not HTTP
		}
		s.t = t
		s.forget()
		// Is it a pair that is in order? Custody alone says.
		one := must(custody.NewIdentity())
		good := false
		op := custody.RefreshOp(data)
		if e, err := custody.SealOneTime(one.Public(), custody.Header{Purpose: custody.PurposeRefresh, Op: op}, data); err == nil {
			good = sealed && status == 200 && one.OpenAnswer(e, op, new(custody.RefreshAnswer)) == nil
		}
		s.broker.answer(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", after)
			body := data
			if sealed {
				var req struct{ Key custody.PublicKey }
				asked := must(io.ReadAll(r.Body))
				if err := json.Unmarshal(asked, &req); err != nil {
					panic(err)
				}
				e, err := custody.SealOneTime(req.Key, custody.Header{Purpose: custody.PurposeRefresh, Op: custody.RefreshOp(asked)}, data)
				if err == nil {
					body = must(e.Marshal())
				}
			}
			w.WriteHeader(status)
			w.Write(body)
		})
		c := s.connection("github", integrations.Read, 10*time.Second)
		c.Refresh = secret("rt1.k." + custody.NewID())
		o := s.order(c, "whoami", `{}`)
		all, err := s.Handle(context.Background(), s.delivery(o))
		if err != nil {
			t.Fatal(err)
		}
		out := s.open(s.ada, all)
		switch {
		case good:
			if len(out.handbacks) != 1 {
				t.Fatalf("the pair is lost: %s %+v", out.code(), out.Error)
			}
			if next, err := c.Take(s.handback(out.handbacks[0])); err != nil || next.Pair != 2 {
				t.Errorf("the pair is not taken: %v", err)
			}
		case !slices.Contains(fails, out.code()) || len(out.handbacks) != 0:
			t.Errorf("%d %.100q: %s, %d hand-backs", status, data, out.code(), len(out.handbacks))
		case out.Error.RetryAfter < 0 || out.Error.RetryAfter > 3600:
			t.Errorf("it is to be tried again after %d s", out.Error.RetryAfter)
		}
		if p, b := s.calls(); b != 1 || p > 1 || !good && p != 0 {
			t.Errorf("%d calls of the provider, %d of the broker", p, b)
		}
	})
}
