package custody

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/integrations"
)

// The ids and times of the vectors.
const (
	opA, grantA = "AAAAAAAAAAAAAAAAAAAAAA", "GGGGGGGGGGGGGGGGGGGGGG"
	wrapA       = "rt1.k1.d3JhcHBlZA"
	wrapB       = "rt1.k1.ZnJlc2g"
	brokerA     = "https://connect.example.com"
	noon        = 1790000000
)

// makeVectors makes every vector. Those with envelopes hold fresh randomness: what is in the
// folder already is kept.
func makeVectors(t *testing.T) []*vector {
	all := freshVectors(t)
	for _, v := range all {
		if v.Manifest == practice(t) {
			v.Manifest = practiceFile
		}
	}
	return all
}

func freshVectors(t *testing.T) []*vector {
	var all []*vector
	all = append(all, sealedVectors(t)...)
	all = append(all, changedVectors(t)...)
	all = append(all, malformedVectors(t)...)
	all = append(all, messageVectors(t)...)
	all = append(all, keyVectors(t)...)
	all = append(all, digestVectors(t)...)
	all = append(all, jcsVectors()...)
	all = append(all, handbackVectors(t)...)
	all = append(all, fragmentVectors(t)...)
	all = append(all, grantVectors(t)...)
	all = append(all, memoryVectors()...)
	all = append(all, legacyVectors(t)...)
	return all
}

// A stage is who acts in the vectors.
type stage struct{ ada, bot, mallory, day, tab *Identity }

func newStage(t testing.TB) stage {
	return stage{testIdentity(t, "ada"), testIdentity(t, "bot"), testIdentity(t, "mallory"), testIdentity(t, "day"), testIdentity(t, "tab")}
}

// fabricated is an envelope that holds the format and opens for nobody.
func (s stage) fabricated(p Purpose, op string) *Envelope {
	e := &Envelope{V: 1, Suite: Suite, Purpose: p, Space: "space", Thread: "thread", Op: op, From: s.ada.id, To: s.bot.id,
		CT: []byte(strings.Repeat("ct", 50)), Tag: []byte(strings.Repeat("t", 32))}
	if p == PurposeHandback {
		e.From, e.To = s.bot.id, s.ada.id
	}
	return e
}

func (s stage) vector(t testing.TB, name, about, expect string, to *Identity, from *Identity, day *Identity, e *Envelope) *vector {
	v := &vector{Name: name, Kind: "envelope", About: about, Expect: expect, RecipientPKCS8: pkcs8Of(t, to), Purpose: string(e.Purpose)}
	if from != nil {
		v.SenderPublic = base64Of(from.pub.Bytes())
	}
	if day != nil {
		v.DayPKCS8 = pkcs8Of(t, day)
	}
	b, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	v.Envelope = string(b)
	return v
}

func (v *vector) opens(plaintext []byte) *vector {
	sum := sha256.Sum256(plaintext)
	v.Plaintext, v.PlaintextSHA256 = plaintext, hex.EncodeToString(sum[:])
	return v
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// sealedVectors are the envelopes that open: one of each purpose, with a message in it.
func sealedVectors(t *testing.T) []*vector {
	s := newStage(t)
	var all []*vector
	add := func(name, about string, from, to, day *Identity, h Header, plaintext []byte) {
		var dayKey *PublicKey
		if day != nil {
			dayKey = &day.pub
		}
		var e *Envelope
		if h.Purpose.unsigned() {
			e = must(SealOneTime(to.pub, h, plaintext))
		} else {
			e = must(from.Seal(to.pub, dayKey, h, plaintext))
		}
		all = append(all, s.vector(t, "success_"+name, about, "success", to, from, day, e).opens(plaintext))
	}
	in := func(p Purpose, op string) Header { return Header{Purpose: p, Space: "space", Thread: "thread", Op: op} }
	messages := validMessages(t)

	add("identity", "a member's key, sealed to itself", s.ada, s.ada, nil, Header{Purpose: PurposeIdentity, Space: "space"}, must(s.ada.MarshalPKCS8()))
	add("identity_next_device", "a member's key, sealed to the one-time key of her next device", s.ada, s.tab, nil, Header{Purpose: PurposeIdentity}, must(s.ada.MarshalPKCS8()))
	add("credential", "", s.ada, s.ada, nil, Header{Purpose: PurposeCredential, Space: "space", Op: "c1.7"}, messages["credential"])
	add("say", "", s.ada, s.bot, nil, in(PurposeSay, ""), messages["say"])
	add("snapshot", "", s.ada, s.ada, nil, in(PurposeSnapshot, "github"), messages["snapshot"])
	add("op", "", s.ada, s.bot, nil, in(PurposeOp, opA), messages["op"])
	add("op_day", "sealed to the bot and, around that, to its key of the day", s.ada, s.bot, s.day, in(PurposeOp, opA), messages["op"])
	add("grant_once", "", s.ada, s.bot, nil, in(PurposeGrant, opA), messages["grant_once"])
	add("grant_research_day", "", s.ada, s.bot, s.day, in(PurposeGrant, ""), messages["grant_research"])
	add("result", "", s.bot, s.ada, nil, in(PurposeResult, opA), messages["result"])
	add("handback", "", s.bot, s.ada, nil, in(PurposeHandback, opA), messages["handback"])
	add("ack", "", s.ada, s.bot, nil, in(PurposeAck, ""), messages["ack"])
	add("end", "", s.ada, s.bot, nil, in(PurposeEnd, ""), messages["end"])
	add("revoke_day", "", s.ada, s.bot, s.day, in(PurposeRevoke, opA), messages["revoke"])
	add("handoff", "", s.bot, s.bot, nil, Header{Purpose: PurposeHandoff, Op: string(s.ada.id)}, messages["handoff"])
	add("tab", "from nobody: no from, no tag", nil, s.tab, nil, Header{Purpose: PurposeTab, Op: "practice.read"}, messages["tab"])
	add("refresh", "from nobody: no from, no tag", nil, s.tab, nil, Header{Purpose: PurposeRefresh, Op: RefreshOp([]byte("{}"))}, messages["refresh"])
	add("empty_plaintext", "nothing is sealed", s.ada, s.bot, nil, in(PurposeSay, ""), []byte{})
	add("binary_plaintext", "bytes that are no text", s.ada, s.bot, nil, in(PurposeSay, ""), []byte{0, 0xff, 0xfe, 0x80})
	add("no_space_no_thread", "absent parts are empty in what the header binds", s.ada, s.bot, nil, Header{Purpose: PurposeSay}, messages["say"])

	e := must(s.ada.Seal(s.bot.pub, nil, in(PurposeSay, ""), []byte("hi")))
	spaced := s.vector(t, "success_spaces_and_order", "white space and the order of fields are free, an empty field is an absent one", "success", s.bot, s.ada, nil, e).opens([]byte("hi"))
	spaced.Envelope = fmt.Sprintf(" {\n\t\"tag\": %q,\r\n \"ct\" :%q, \"to\":%q , \"from\": %q, \"op\":\"\", \"day\":\"\",\"thread\":\"thread\",\"space\":\"space\",\"purpose\":\"s\\u0061y\",\"suite\":%q,\"v\":1 }\n ",
		base64Of(e.Tag), base64Of(e.CT), e.To, e.From, e.Suite)
	full := s.vector(t, "success_largest", "exactly 65,536 bytes, most of them space", "success", s.bot, s.ada, nil, e).opens([]byte("hi"))
	full.PadTo = MaxMessage
	over := s.vector(t, "too_big", "one byte more", "too_big", s.bot, s.ada, nil, e)
	over.PadTo = MaxMessage + 1
	return append(all, spaced, full, over)
}

// changedVectors are envelopes of which one thing was changed after they were sealed, or
// which were sealed by somebody who has a key and means no good.
func changedVectors(t *testing.T) []*vector {
	s := newStage(t)
	h := Header{Purpose: PurposeOp, Space: "ab", Thread: "c", Op: opA}
	base := must(s.ada.Seal(s.bot.pub, nil, h, []byte("{}")))
	dated := must(s.ada.Seal(s.bot.pub, &s.day.pub, h, []byte("{}")))
	var all []*vector
	add := func(name, about, expect string, to, from, day *Identity, e *Envelope) *vector {
		v := s.vector(t, name, about, expect, to, from, day, e)
		all = append(all, v)
		return v
	}
	changed := func(e *Envelope, change func(*Envelope)) *Envelope {
		n := *e
		n.CT, n.Tag = append(Bytes(nil), e.CT...), append(Bytes(nil), e.Tag...)
		change(&n)
		return &n
	}
	plain := func(name, about, expect string, change func(*Envelope)) {
		add(name, about, expect, s.bot, s.ada, nil, changed(base, change)).Purpose = string(PurposeOp)
	}
	plain("header_v", "", "version", func(e *Envelope) { e.V = 2 })
	plain("header_suite", "", "version", func(e *Envelope) { e.Suite = "x25519-sha256-aes256gcm" })
	plain("header_space", "", "forged", func(e *Envelope) { e.Space = "other" })
	plain("header_space_absent", "", "forged", func(e *Envelope) { e.Space = "" })
	plain("header_thread", "", "forged", func(e *Envelope) { e.Thread = "other" })
	plain("header_space_thread_moved", "the same letters, cut elsewhere", "forged", func(e *Envelope) { e.Space, e.Thread = "a", "bc" })
	plain("header_space_thread_swapped", "", "forged", func(e *Envelope) { e.Space, e.Thread = e.Thread, e.Space })
	plain("header_op", "", "forged", func(e *Envelope) { e.Op = grantA })
	plain("header_from", "it names another sender", "forged", func(e *Envelope) { e.From = s.mallory.id })
	add("header_from_known", "it names another sender, whose key is known", "forged", s.bot, s.mallory, nil, changed(base, func(e *Envelope) { e.From = s.mallory.id }))
	plain("header_to", "", "not_mine", func(e *Envelope) { e.To = s.mallory.id })
	add("header_to_readdressed", "sent on to another member", "forged", s.mallory, s.ada, nil, changed(base, func(e *Envelope) { e.To = s.mallory.id }))
	add("header_day_added", "", "forged", s.bot, s.ada, s.day, changed(dated, func(e *Envelope) { e.Day = s.tab.id }))
	add("header_day_removed", "", "forged", s.bot, s.ada, s.day, changed(dated, func(e *Envelope) { e.Day = "" }))
	plain("header_purpose", "the purpose is changed and opened as that", "forged", func(e *Envelope) { e.Purpose = PurposeRevoke })
	all[len(all)-1].Purpose = string(PurposeRevoke)
	plain("wrong_purpose", "an op where a revoke is expected", "purpose", func(*Envelope) {})
	all[len(all)-1].Purpose = string(PurposeRevoke)
	add("wrong_recipient", "opened by a key to which it was not sealed", "not_mine", s.mallory, s.ada, nil, base)
	add("wrong_sender", "held against a key that is not its from's", "forged", s.bot, s.mallory, nil, base)
	add("wrong_direction", "sent back to its sender", "forged", s.ada, s.bot, nil, changed(base, func(e *Envelope) { e.From, e.To = e.To, e.From }))
	plain("tag_bit", "the last bit of the tag", "forged", func(e *Envelope) { e.Tag[31] ^= 1 })
	plain("tag_zero", "", "forged", func(e *Envelope) { clear(e.Tag) })
	plain("tag_of_another", "the tag of another envelope of the same pair", "forged", func(e *Envelope) { e.Tag = dated.Tag })
	plain("ct_bit", "the last bit of the ciphertext", "forged", func(e *Envelope) { e.CT[len(e.CT)-1] ^= 1 })
	plain("ct_encapsulated_bit", "a bit of the encapsulated key", "forged", func(e *Envelope) { e.CT[40] ^= 1 })
	plain("ct_longer", "", "forged", func(e *Envelope) { e.CT = append(e.CT, 0) })
	plain("ct_short", "shorter than an encapsulated key and a tag", "malformed", func(e *Envelope) { e.CT = e.CT[:80] })
	add("ct_short_day", "shorter than two of both", "malformed", s.bot, s.ada, s.day, changed(dated, func(e *Envelope) { e.CT = e.CT[:161] }))
	add("day_unknown", "the recipient has no key of the day", "day", s.bot, s.ada, nil, dated)
	add("day_other", "it has that of another day", "day", s.bot, s.ada, s.tab, dated)
	add("day_forged", "an unknown day and a wrong tag: the tag is looked at first", "forged", s.bot, s.ada, nil, changed(dated, func(e *Envelope) { e.Tag[0] ^= 1 }))

	// What an honest sender never makes: the tag is good and the rest is not.
	sign := func(name, about string, day *Identity, e *Envelope, change func(*Envelope)) {
		n := changed(e, change)
		n.Tag = tag(must(s.ada.tagKeys(s.bot.pub)).sent, n.info(), n.CT)
		add(name, about, "open", s.bot, s.ada, day, n)
	}
	sign("open_ct_bit", "changed by whoever has the sender's key", nil, base, func(e *Envelope) { e.CT[len(e.CT)-1] ^= 1 })
	sign("open_encapsulated_not_on_curve", "the encapsulated key is no point of P-256", nil, base, func(e *Envelope) { e.CT[64] ^= 1 })
	sign("open_encapsulated_compressed", "it is a compressed point", nil, base, func(e *Envelope) {
		e.CT = append(append(Bytes{2 + e.CT[64]&1}, e.CT[1:33]...), e.CT[65:]...)
		e.CT = append(e.CT, make([]byte, 32)...)
	})
	sign("open_encapsulated_infinity", "it is the point at infinity", nil, base, func(e *Envelope) { clear(e.CT[:65]) })
	sign("open_other_info", "sealed for another thread", nil, base, func(e *Envelope) { e.Thread = "d" })
	sign("open_other_recipient", "sealed to another key than it names", nil, base, func(e *Envelope) {
		e.CT = must(hpkeSeal(s.mallory.pub, e.info(), []byte("{}")))
	})
	sign("open_no_outer", "it names a key of the day and is not sealed to it", s.day, dated, func(e *Envelope) {
		e.CT = must(hpkeSeal(s.bot.pub, e.info(), make([]byte, 100)))
	})
	sign("open_outer_only", "what the key of the day opens is not sealed to the bot", s.day, dated, func(e *Envelope) {
		e.CT = must(hpkeSeal(s.day.pub, outer(e.info()), make([]byte, 100)))
	})
	sign("open_outer_without_label", "the outer seal is bound to the inner one's info", s.day, dated, func(e *Envelope) {
		e.CT = must(hpkeSeal(s.day.pub, e.info(), must(hpkeSeal(s.bot.pub, e.info(), []byte("{}")))))
	})
	tab := must(SealOneTime(s.tab.pub, Header{Purpose: PurposeTab, Op: "practice.read"}, []byte("{}")))
	add("open_tab_bit", "a tab's outcome has no tag; its ciphertext protects itself", "open", s.tab, nil, nil, changed(tab, func(e *Envelope) { e.CT[len(e.CT)-1] ^= 1 }))
	add("open_tab_access", "its header cannot be changed either", "open", s.tab, nil, nil, changed(tab, func(e *Envelope) { e.Op = "practice.write" }))
	add("tab_other_key", "", "not_mine", s.ada, nil, nil, tab)
	return all
}

// malformedVectors are texts that are no envelope of version 1.
func malformedVectors(t *testing.T) []*vector {
	s := newStage(t)
	e := s.fabricated(PurposeOp, opA)
	text := string(must(e.Marshal()))
	var all []*vector
	add := func(name, about, expect, text string) *vector {
		v := s.vector(t, "malformed_"+name, about, expect, s.bot, s.ada, nil, e)
		v.Envelope = text
		all = append(all, v)
		return v
	}
	swap := func(name, about, old, new string) {
		if !strings.Contains(text, old) {
			t.Fatalf("%s: %s is not there", name, old)
		}
		add(name, about, "malformed", strings.Replace(text, old, new, 1))
	}
	ct, tag := base64Of(e.CT), base64Of(e.Tag)
	swap("base64_loose", "the last character holds bits that stand for nothing", tag+`"`, tag[:42]+`B"`)
	swap("base64_padding", "", tag+`"`, tag+`="`)
	swap("base64_standard", "the alphabet of base64, not of base64url", ct[:4], "+/Y3")
	swap("base64_newline", "", ct[:4], ct[:4]+`\n`)
	swap("base64_space", "", ct[:4], ct[:4]+` `)
	swap("base64_length", "a length that no bytes have", tag+`"`, tag+`AA"`)
	swap("duplicate", "a field stands twice, with the same value", `"v":1`, `"v":1,"v":1`)
	swap("duplicate_escaped", "a field stands twice, once escaped", `"v":1`, `"v":1,"\u0076":1`)
	swap("unknown_field", "", `"v":1`, `"v":1,"w":1`)
	swap("case", "names are not folded", `"space"`, `"Space"`)
	swap("null", "", `"space":"space"`, `"space":null`)
	swap("number_for_text", "", `"space":"space"`, `"space":1`)
	swap("v_text", "", `"v":1`, `"v":"1"`)
	swap("v_fraction", "", `"v":1`, `"v":1.0`)
	swap("v_exponent", "", `"v":1`, `"v":1e0`)
	swap("v_zero", "", `"v":1`, `"v":0`)
	swap("v_negative", "", `"v":1`, `"v":-1`)
	swap("v_huge", "", `"v":1`, `"v":100000000000000000000`)
	swap("v_leading_zero", "", `"v":1`, `"v":01`)
	swap("v_missing", "", `"v":1,`, ``)
	swap("suite_missing_comma", "", `1,`, `1`)
	swap("purpose", "", `"op"`, `"opp"`)
	swap("purpose_missing", "", `"purpose":"op",`, ``)
	swap("space_form", "", `"space":"space"`, `"space":"a space"`)
	swap("space_long", "65 characters", `"space":"space"`, `"space":"`+strings.Repeat("s", 65)+`"`)
	swap("thread_newline", "", `"thread":"thread"`, `"thread":"thread\n"`)
	swap("op_form", "an op's op is an id of 128 random bits", opA, "op")
	swap("op_missing", "", `"op":"`+opA+`",`, ``)
	swap("from_form", "", string(e.From), string(e.From)+"A")
	swap("from_missing", "", `"from":"`+string(e.From)+`",`, ``)
	swap("to_missing", "", `"to":"`+string(e.To)+`",`, ``)
	swap("ct_missing", "", `"ct":"`+ct+`",`, ``)
	swap("tag_missing", "", `,"tag":"`+tag+`"`, ``)
	swap("tag_short", "31 bytes", tag, base64Of(e.Tag[:31]))
	swap("tag_long", "33 bytes", tag, base64Of(append(e.Tag[:32:32], 0)))
	swap("surrogate", "half a surrogate pair", `"space":"space"`, `"space":"\ud800"`)
	swap("escape", "an escape that JSON does not have", `"space":"space"`, `"space":"\x41"`)
	swap("control_character", "", `"space":"space"`, "\"space\":\"sp\tace\"")
	swap("comment", "", `{`, `/**/{`)
	swap("trailing_comma", "", tag+`"`, tag+`",`)
	swap("single_quotes", "", `"v":1`, `'v':1`)
	swap("deep", "65 levels", `"space":"space"`, `"space":`+strings.Repeat("[", 64)+strings.Repeat("]", 64))
	add("empty", "", "malformed", "")
	add("list", "", "malformed", "["+text+"]")
	add("text", "", "malformed", `"envelope"`)
	add("null_whole", "", "malformed", "null")
	add("trailing", "", "malformed", text+"{}")
	add("trailing_nul", "", "malformed", text+"\x00")
	add("cut", "", "malformed", text[:len(text)-1])
	add("version_unknown_field", "v is looked at before what this version knows", "version", strings.Replace(text, `"v":1`, `"v":3,"w":1`, 1))
	add("bom", "a byte-order mark", "malformed", "").EnvelopeBytes = []byte("\ufeff" + text)
	add("utf8", "a byte that is no UTF-8", "malformed", "").EnvelopeBytes = []byte(strings.Replace(text, `"space":"space"`, "\"space\":\"sp\xffce\"", 1))

	other := func(name, about string, change func(*Envelope)) {
		n := *e
		change(&n)
		v := add(name, about, "malformed", string(must(n.Marshal())))
		v.Purpose = string(n.Purpose)
	}
	tab := func(change func(*Envelope)) func(*Envelope) {
		return func(e *Envelope) {
			e.Purpose, e.Space, e.Thread, e.Op, e.From, e.Tag = PurposeTab, "", "", "practice.read", "", nil
			change(e)
		}
	}
	other("tab_tag", "what the broker answers has no tag", tab(func(n *Envelope) { n.Tag = e.Tag }))
	other("tab_from", "", tab(func(n *Envelope) { n.From = e.From }))
	other("tab_space", "", tab(func(n *Envelope) { n.Space = "space" }))
	other("tab_day", "", tab(func(n *Envelope) { n.Day = s.day.id }))
	other("tab_op", "", tab(func(n *Envelope) { n.Op = "practice.admin" }))
	other("refresh_op", "it is the hash of the request", tab(func(n *Envelope) { n.Purpose, n.Op = PurposeRefresh, "practice.read" }))
	other("result_day", "a result goes to a member, who has no key of the day", func(n *Envelope) { n.Purpose, n.Day, n.CT = PurposeResult, s.day.id, make([]byte, 200) })
	other("credential_from", "a credential goes from a key to itself", func(n *Envelope) { n.Purpose, n.Op = PurposeCredential, "c1.1" })
	other("credential_op", "the generation has no leading zero", func(n *Envelope) { n.Purpose, n.Op, n.To = PurposeCredential, "c1.01", n.From })
	other("identity_op", "", func(n *Envelope) { n.Purpose, n.To = PurposeIdentity, n.From })
	other("handback_op", "", func(n *Envelope) { n.Purpose, n.Op = PurposeHandback, "c1" })
	return all
}

// validMessages are one message of each kind, and some more.
func validMessages(t testing.TB) map[string][]byte {
	s := newStage(t)
	d := Digest(sha256.Sum256([]byte("a digest")))
	grant := string(must(s.fabricated(PurposeGrant, opA).Marshal()))
	handback := string(must(s.fabricated(PurposeHandback, opA).Marshal()))
	lent := `"id":"` + grantA + `","service":"practice","iat":1790000000,"secret":"secret-a","credential":"c1","pair":3`
	rotated := Handback{V: 1, Credential: "c1", Pair: 4, Secret: integrations.NewSecret("secret-b"), Refresh: integrations.NewSecret(wrapB), ExpiresAt: noon + 3600, ObtainedAt: noon}
	if err := rotated.Sign(integrations.NewSecret(wrapA)); err != nil {
		t.Fatal(err)
	}
	m := map[string]string{
		"credential": `{"v":1,"id":"c1","generation":7,"pair":3,"service":"practice","kind":"oauth","secret":"secret-a","refresh":"` + wrapA + `","broker":"` + brokerA +
			`","expires_at":1790003600,"obtained_at":1790000000,"scopes":["read","write"],"wider":true,"cap":"write","account":{"id":"1","label":"ada"},` +
			`"connection":{"room":{"value":"r1","label":"Room 1"}},"keep":{"tenant":"t1"},"ops":{"book":"` + d.String() + `"},"lent":{"group":"g1","until":1790000600},"connected_at":1780000000}`,
		"credential_pat": `{"v":1,"id":"c1","generation":1,"pair":1,"service":"practice","kind":"pat","secret":"secret-a","cap":"read","connected_at":1780000000}`,
		"credential_old": `{"v":1,"id":"c1","generation":0,"pair":0,"service":"practice","kind":"pat","secret":"secret-a","connected_at":0}`,
		"grant_once": `{"v":1,` + lent + `,"access":"write","use":"once","exp":1790000120,"kind":"oauth","refresh":"` + wrapA + `","broker":"` + brokerA +
			`","expires_at":1790000100,"account":{"id":"1","label":"ada"},"once":{"op":"book","op_sha256":"` + d.String() + `","args_sha256":"` + d.String() + `","say_sha256":"` + d.String() +
			`","lang":"en","preview_sha256":"` + d.String() + `"}}`,
		"grant_revoke":       `{"v":1,` + lent + `,"access":"read","use":"once","exp":1790000120,"kind":"oauth"}`,
		"grant_research":     `{"v":1,` + lent + `,"access":"read","use":"research","exp":1790000600,"kind":"pat","ops":{"whoami":"` + d.String() + `"},"question":"say.1"}`,
		"grant_standing":     `{"v":1,` + lent + `,"access":"read","use":"standing","exp":1790604800,"kind":"pat","ops":{"whoami":"` + d.String() + `"},"charter":"ch1","window":{"days":["mon","fri"],"from":"22:00","to":"06:00","tz":"Europe/London"}}`,
		"grant_standing_mcp": `{"v":1,` + lent + `,"access":"read","use":"standing","exp":1790604800,"kind":"pat","ops":{"whoami":"` + d.String() + `"},"charter":"mcp:` + string(s.bot.id) + `"}`,
		"grant_asks":         `{"v":1,` + lent + `,"access":"write","use":"asks","exp":1790028800,"kind":"pat","ops":{"add_note":"` + d.String() + `"}}`,
		"grant_before":       `{"v":1,` + lent + `,"use":"research","exp":1790000600,"ops":{"whoami":"` + d.String() + `"},"question":"say.1"}`,
		"say":                `{"v":1,"id":"say.1","at":1790000000,"text":"What costs room r1?"}`,
		"say_propose":        `{"v":1,"id":"say.1","at":1790000000,"propose":{"service":"practice","op":"book","args":{"room":"r1","n":9007199254740993}}}`,
		"say_event":          `{"v":1,"id":"say.1","at":1790000000,"event":{"type":"listed","result":[1.0,null]},"receipt":{"ops":[]},"charter":{"id":"ch1"}}`,
		"snapshot":           `{"open":[1,2.50,null],"é":"é"}`,
		"op":                 `{"v":2,"id":"` + opA + `","service":"practice","op":"book","args":{"room":"r1","big":9007199254740993,"clear":null},"grant":` + grant + `}`,
		"result":             `{"v":2,"id":"` + opA + `","ok":true,"result":[{"id":9007199254740993,"price":1.0}],"next":{"page":2}}`,
		"result_null":        `{"v":2,"id":"` + opA + `","ok":true,"result":null}`,
		"result_error":       `{"v":2,"id":"` + opA + `","ok":false,"error":{"code":"rate_limited","message":"Practice asks to wait.","retry_after":30,"details":{"until":1790000030,"status":429}},"handback":` + handback + `}`,
		"result_rotated":     `{"v":2,"id":"` + opA + `","ok":false,"error":{"code":"rotated","message":"","details":{"proof":"` + d.String() + `"}},"handback":` + handback + `}`,
		"result_day":         `{"v":2,"id":"` + opA + `","ok":false,"error":{"code":"day","message":"Once more.","details":{"until":1790086400,"day":"` + base64Of(s.day.pub.Bytes()) + `"}}}`,
		"result_day_none":    `{"v":2,"id":"` + opA + `","ok":false,"error":{"code":"day","message":"Once more, without."}}`,
		"handback":           string(must(marshal(rotated))),
		"handback_constant":  `{"v":1,"credential":"c1","pair":4,"secret":"secret-b","obtained_at":1790000000,"keep":{"tenant":"t2"},"link":"` + d.String() + `"}`,
		"ack":                `{"credential":"c1","pair":4}`,
		"end":                `{"at":1790000000,"grants":["` + grantA + `"]}`,
		"end_credential":     `{"at":1790000000,"credential":"c1","pause":1790086400}`,
		"revoke":             `{"v":1,"id":"` + opA + `","service":"practice","grant":` + grant + `}`,
		"handoff":            `{"v":1,"member":"` + string(s.ada.id) + `","credential":"c1","pair":4,"secret":"secret-b","refresh":"` + wrapB + `","expires_at":1790003600,"obtained_at":1790000000,"until":1790000600}`,
		"tab":                `{"v":1,"service":"practice","access":"read","kind":"oauth","secret":"secret-a","refresh":"` + wrapA + `","expires_in":3600,"scopes":["read"],"keep":{"tenant":"t1"}}`,
		"tab_cancelled":      `{"v":1,"service":"practice","error":"cancelled"}`,
		"refresh":            `{"secret":"secret-b","refresh":"` + wrapB + `","same":false,"expires_in":3600}`,
		"refresh_same":       `{"secret":"secret-b","refresh":"` + wrapA + `","same":true,"scopes":["read"],"keep":{"tenant":"t1"}}`,
	}
	out := make(map[string][]byte, len(m))
	for name, text := range m {
		out[name] = []byte(text)
	}
	return out
}

// headerOp is the op of the header around validMessages.
func headerOp(name string, s stage) string {
	switch {
	case strings.HasPrefix(name, "op"), strings.HasPrefix(name, "result"), strings.HasPrefix(name, "revoke"), name == "grant_once", name == "grant_revoke":
		return opA
	case name == "credential":
		return "c1.7"
	case name == "credential_pat":
		return "c1.1"
	case name == "credential_old":
		return "c1.0"
	case strings.HasPrefix(name, "tab"):
		return "practice.read"
	case strings.HasPrefix(name, "refresh"):
		return RefreshOp([]byte("{}"))
	case name == "handoff":
		return string(s.ada.id)
	}
	return ""
}

func messageVectors(t *testing.T) []*vector {
	s := newStage(t)
	valid := validMessages(t)
	var all []*vector
	for name, text := range valid {
		purpose, _, _ := strings.Cut(name, "_")
		all = append(all, &vector{Name: "message_" + name, Kind: "message", Expect: "success", Purpose: purpose, Op: headerOp(name, s), Message: string(text)})
	}
	// Each of these changes one thing of a valid message.
	for _, c := range []struct{ of, name, about, expect, old, new string }{
		{"credential", "v", "", "version", `"v":1`, `"v":2,"new":true`},
		{"credential", "id", "", "malformed", `"c1"`, `"c 1"`},
		{"credential", "generation", "the header names another", "malformed", `"generation":7`, `"generation":8`},
		{"credential", "counter", "", "malformed", `"pair":3`, `"pair":4503599627370497`},
		{"credential", "service", "", "malformed", `"practice"`, `"Practice"`},
		{"credential", "kind", "", "malformed", `"oauth"`, `"saml"`},
		{"credential", "secret", "a token holds no space", "malformed", `"secret-a"`, `"secret a"`},
		{"credential", "secret_null", "", "malformed", `"secret-a"`, `null`},
		{"credential", "secret_long", "8,193 characters", "malformed", `"secret-a"`, `"` + strings.Repeat("s", 8193) + `"`},
		{"credential", "refresh", "the provider's own token is never stored", "malformed", wrapA, "refresh-a"},
		{"credential", "refresh_long", "11,265 characters", "malformed", wrapA, "rt1.k1." + strings.Repeat("r", 11258)},
		{"credential", "broker", "", "malformed", `"broker":"` + brokerA + `",`, ``},
		{"credential", "broker_path", "an origin has no path", "malformed", brokerA, brokerA + "/"},
		{"credential", "cap", "", "malformed", `"cap":"write"`, `"cap":"admin"`},
		{"credential", "time", "", "malformed", `1780000000`, `-1`},
		{"credential", "time_ms", "milliseconds", "malformed", `1780000000`, `1780000000000`},
		{"credential", "ops", "", "malformed", `"ops":{"book"`, `"ops":{"Book"`},
		{"credential", "lent", "", "malformed", `"group":"g1",`, ``},
		{"credential", "keep_number", "", "malformed", `"t1"`, `1`},
		{"credential", "duplicate_deep", "a field of an inner object stands twice", "malformed", `"tenant":"t1"`, `"tenant":"t1","tenant":"t1"`},
		{"grant_once", "v", "", "version", `"v":1`, `"v":2`},
		{"grant_once", "v_missing", "", "malformed", `"v":1,`, ``},
		{"grant_once", "id", "", "malformed", grantA, "g1"},
		{"grant_once", "access", "", "malformed", `"write"`, `"admin"`},
		{"grant_once", "access_missing", "without kind and account it would be one of before", "malformed", `"access":"write",`, ``},
		{"grant_once", "use", "", "malformed", `"use":"once"`, `"use":"always"`},
		{"grant_once", "long", "301 seconds", "expiry", `"exp":1790000120`, `"exp":1790000301`},
		{"grant_once", "ended_before", "", "malformed", `"exp":1790000120`, `"exp":1790000000`},
		{"grant_once", "ops", "", "malformed", `,"once"`, `,"ops":{"book":"` + opA + opA[:21] + `"},"once"`},
		{"grant_once", "question", "", "malformed", `,"once"`, `,"question":"say.1","once"`},
		{"grant_once", "charter", "", "malformed", `,"once"`, `,"charter":"ch1","once"`},
		{"grant_once", "lang", "", "malformed", `"lang":"en"`, `"lang":"English!"`},
		{"grant_once", "digest_missing", "", "malformed", `"lang":"en",`, ``},
		{"grant_once", "digest_short", "", "malformed", `"say_sha256":"`, `"say_sha256":"AAAA`},
		{"grant_once", "unknown_deep", "a field of an inner object is not known", "malformed", `"lang":"en"`, `"lang":"en","x":1`},
		{"grant_revoke", "write", "a revoke's grant reads", "malformed", `"read"`, `"write"`},
		{"grant_research", "write", "a write runs only under once", "once", `"read"`, `"write"`},
		{"grant_research", "long", "901 seconds", "expiry", `"exp":1790000600`, `"exp":1790000901`},
		{"grant_research", "question_missing", "", "malformed", `,"question":"say.1"`, ``},
		{"grant_research", "ops_missing", "", "malformed", `"ops":{"whoami"`, `"keep":{"whoami"`},
		{"grant_research", "ops_empty", "", "malformed", `"ops":{"whoami":"` + Digest(sha256.Sum256([]byte("a digest"))).String() + `"}`, `"ops":{}`},
		{"grant_standing", "charter_missing", "", "malformed", `,"charter":"ch1"`, ``},
		{"grant_standing", "long", "a second more than seven days", "expiry", `1790604800`, `1790604801`},
		{"grant_standing", "day_twice", "", "malformed", `["mon","fri"]`, `["mon","mon"]`},
		{"grant_standing", "no_days", "", "malformed", `["mon","fri"]`, `[]`},
		{"grant_standing", "clock", "", "malformed", `"22:00"`, `"24:00"`},
		{"grant_standing", "zone_local", "whose local time?", "malformed", `Europe/London`, `Local`},
		{"grant_standing", "zone_path", "", "malformed", `Europe/London`, `../London`},
		{"grant_standing_mcp", "charter", "", "malformed", `"mcp:`, `"mcp:x`},
		{"grant_asks", "read", "", "malformed", `"write"`, `"read"`},
		{"grant_asks", "long", "a second more than eight hours", "expiry", `1790028800`, `1790028801`},
		{"say", "v", "", "version", `"v":1`, `"v":2`},
		{"say", "nothing", "", "malformed", `,"text":"What costs room r1?"`, ``},
		{"say", "at", "", "malformed", `1790000000`, `0`},
		{"say", "text_big", "16,385 bytes", "too_big", `What costs room r1?`, strings.Repeat("é", 8192) + "!"},
		{"say_propose", "args", "", "malformed", `{"room":"r1","n":9007199254740993}`, `["r1"]`},
		{"say_propose", "args_duplicate", "a field stands twice in what is carried", "malformed", `"room":"r1"`, `"room":"r1","room":"r2"`},
		{"say_propose", "args_surrogate", "", "malformed", `"r1"`, `"\udc00\ud800"`},
		{"say_propose", "op", "", "malformed", `"book"`, `"book a room"`},
		{"say_event", "list", "", "malformed", `"event":{"type":"listed","result":[1.0,null]}`, `"event":[]`},
		{"snapshot", "null", "null is no value", "malformed", `{"open":[1,2.50,null],"é":"é"}`, `null`},
		{"snapshot", "empty", "", "malformed", `{"open":[1,2.50,null],"é":"é"}`, ``},
		{"op", "v", "", "version", `"v":2`, `"v":3`},
		{"op", "v_old", "an op of before has no v at all", "version", `"v":2`, `"v":1`},
		{"op", "id", "", "malformed", opA, "op1"},
		{"op", "other_id", "the header names another", "malformed", opA, grantA},
		{"op", "args_list", "", "malformed", `{"room":"r1","big":9007199254740993,"clear":null}`, `[]`},
		{"op", "args_missing", "", "malformed", `"args":{"room":"r1","big":9007199254740993,"clear":null},`, ``},
		{"op", "args_deep", "", "malformed", `"clear":null`, `"clear":` + strings.Repeat("[", 63) + strings.Repeat("]", 63)},
		{"op", "grant_missing", "", "malformed", `"grant":`, `"gränt":`},
		{"op", "grant_purpose", "", "purpose", `"purpose":"grant"`, `"purpose":"op"`},
		{"op", "grant_suite", "", "version", Suite, "rot13"},
		{"result", "ok_and_error", "", "malformed", `"next":{"page":2}`, `"error":{"code":"busy","message":""}`},
		{"result", "no_result", "", "malformed", `"result":[{"id":9007199254740993,"price":1.0}],`, ``},
		{"result", "next_list", "", "malformed", `{"page":2}`, `[2]`},
		{"result", "next_null", "", "malformed", `{"page":2}`, `null`},
		{"result", "big", "45,057 bytes", "too_big", `[{"id":9007199254740993,"price":1.0}]`, `"` + strings.Repeat("x", 45055) + `"`},
		{"result_error", "code", "", "malformed", `"rate_limited"`, `"Rate limited"`},
		{"result_error", "retry_after", "", "malformed", `"retry_after":30`, `"retry_after":-30`},
		{"result_error", "handback_purpose", "", "purpose", `"purpose":"handback"`, `"purpose":"grant"`},
		{"result_rotated", "no_proof", "", "malformed", `"proof"`, `"arg"`},
		{"result_rotated", "other_code", "", "malformed", `"rotated"`, `"busy"`},
		{"handback", "pair", "", "malformed", `"pair":4`, `"pair":0`},
		{"handback", "link_missing", "", "malformed", `"link"`, `"lnk"`},
		{"handback", "secret", "", "malformed", `"secret-b"`, `""`},
		{"handback_constant", "pair_huge", "", "malformed", `"pair":4`, `"pair":9007199254740993`},
		{"ack", "v", "an ack has none", "malformed", `"pair":4`, `"pair":4,"v":1`},
		{"end", "both", "", "malformed", `"at"`, `"credential":"c1","at"`},
		{"end", "neither", "", "malformed", `["` + grantA + `"]`, `[]`},
		{"end", "at_missing", "", "malformed", `"at":1790000000,`, ``},
		{"end", "grant", "", "malformed", grantA, "g1"},
		{"ack", "credential", "", "malformed", `"c1"`, `"c 1"`},
		{"ack", "pair", "", "malformed", `4`, `-4`},
		{"end_credential", "credential", "", "malformed", `"c1"`, `"c 1"`},
		{"end_credential", "pause_text", "", "malformed", `1790086400`, `"1790086400"`},
		{"revoke", "v", "", "version", `"v":1,"id"`, `"v":2,"id"`},
		{"revoke", "id", "", "malformed", opA, "revoke1"},
		{"revoke", "service", "", "malformed", `"practice"`, `"Practice"`},
		{"revoke", "grant_missing", "", "malformed", `"grant":{`, `"grants":{`},
		{"revoke", "grant_purpose", "", "purpose", `"purpose":"grant"`, `"purpose":"op"`},
		{"grant_once", "service", "", "malformed", `"practice"`, `"Practice"`},
		{"grant_once", "kind", "", "malformed", `"oauth"`, `"saml"`},
		{"grant_once", "broker", "", "malformed", brokerA, "connect.example.com"},
		{"grant_once", "credential", "", "malformed", `"c1"`, `""`},
		{"grant_once", "pair", "", "malformed", `"pair":3`, `"pair":-3`},
		{"grant_once", "window", "", "malformed", `,"once"`, `,"window":{"days":["mon"],"from":"08:00","to":"18:00","tz":"UTC"},"once"`},
		{"grant_research", "op_name", "", "malformed", `"whoami"`, `"Who am I"`},
		{"result_day", "other_code", "", "malformed", `"code":"day"`, `"code":"busy"`},
		{"result_day", "no_end", "", "malformed", `"until":1790086400,`, ``},
		{"result_day", "short", "64 bytes", "malformed", base64Of(s.day.pub.Bytes()), base64Of(s.day.pub.Bytes()[:64])},
		{"result_day", "not_on_curve", "", "malformed", base64Of(s.day.pub.Bytes()), base64Of(append(s.day.pub.Bytes()[:64:64], s.day.pub.Bytes()[64]^1))},
		{"result_day", "beyond_the_field", "x + p for x", "malformed", base64Of(s.day.pub.Bytes()), base64Of(append(append([]byte{4}, bytes.Repeat([]byte{0xff}, 32)...), s.day.pub.Bytes()[33:]...))},
		{"handback", "v", "", "version", `"v":1`, `"v":2`},
		{"handback", "credential", "", "malformed", `"c1"`, `"c/1"`},
		{"handback", "time", "", "malformed", `"obtained_at":1790000000`, `"obtained_at":1790000000000`},
		{"handback", "refresh", "", "malformed", wrapB, "fresh"},
		{"handoff", "v", "", "version", `"v":1`, `"v":2`},
		{"handoff", "credential", "", "malformed", `"c1"`, `"c/1"`},
		{"handoff", "pair", "", "malformed", `"pair":4`, `"pair":0`},
		{"tab", "v", "", "version", `"v":1`, `"v":2`},
		{"tab", "kind", "", "malformed", `"oauth"`, `"pat"`},
		{"tab", "expires_in", "", "malformed", `3600`, `-1`},
		{"tab", "secret", "", "malformed", `"secret-a"`, `""`},
		{"revoke", "other_id", "the header names another", "malformed", opA, grantA},
		{"handoff", "member", "", "malformed", `"member":"`, `"member":"x`},
		{"handoff", "until", "", "malformed", `,"until":1790000600`, ``},
		{"tab", "other_service", "the header names another", "malformed", `"practice"`, `"other"`},
		{"tab", "other_access", "the header names another", "malformed", `"access":"read"`, `"access":"write"`},
		{"tab", "error_and_secret", "", "malformed", `"kind":"oauth"`, `"error":"denied"`},
		{"tab_cancelled", "error", "", "malformed", `"cancelled"`, `"exploded"`},
		{"tab_cancelled", "other_service", "the header names another", "malformed", `"practice"`, `"other"`},
		{"refresh", "no_refresh", "", "malformed", `"refresh":"` + wrapB + `",`, ``},
		{"refresh", "expires_in", "", "malformed", `3600`, `3600.5`},
	} {
		text, ok := valid[c.of]
		if !ok || !strings.Contains(string(text), c.old) {
			t.Fatalf("%s %s: %s is not there", c.of, c.name, c.old)
		}
		purpose, _, _ := strings.Cut(c.of, "_")
		all = append(all, &vector{
			Name: "message_" + c.of + "_bad_" + c.name, Kind: "message", About: c.about, Expect: c.expect, Purpose: purpose, Op: headerOp(c.of, s),
			Message: strings.Replace(string(text), c.old, c.new, 1),
		})
	}
	bound := func(name, about, of, purpose, op string, day bool) {
		all = append(all, &vector{Name: "message_" + name, Kind: "message", About: about, Expect: "malformed", Purpose: purpose, Op: op, Day: day, Message: string(valid[of])})
	}
	bound("grant_once_without_op", "its envelope names the op", "grant_once", "grant", "", false)
	bound("grant_research_with_op", "its envelope names none", "grant_research", "grant", opA, false)
	bound("grant_standing_with_day", "it outlives the key of the day", "grant_standing", "grant", "", true)
	bound("grant_asks_with_day", "it outlives the key of the day", "grant_asks", "grant", "", true)
	for _, empty := range []struct{ name, purpose, op, text string }{
		{"empty_fields", "handback", opA, strings.Replace(string(valid["handback_constant"]), `"keep":{"tenant":"t2"}`, `"refresh":"","expires_at":0,"keep":{}`, 1)},
	} {
		all = append(all, &vector{Name: "message_" + empty.name, Kind: "message", About: "an empty optional field is an absent one", Expect: "success", Purpose: empty.purpose, Op: empty.op, Message: empty.text})
	}
	return all
}

func keyVectors(t *testing.T) []*vector {
	var all []*vector
	for _, name := range []string{"ada", "bot", "mallory", "day", "tab"} {
		p := testIdentity(t, name).pub
		all = append(all, &vector{Name: "key_" + name, Kind: "key", Expect: "success", Public: base64Of(p.Bytes()), KeyID: string(p.ID()), CheckNumber: p.CheckNumber()})
	}
	// A check number keeps its leading zeros.
	for i := 0; ; i++ {
		p := testIdentity(t, fmt.Sprintf("tab %d", i)).pub
		if n := p.CheckNumber(); strings.HasPrefix(n, "00") {
			all = append(all, &vector{Name: "key_leading_zeros", Kind: "key", Expect: "success", Public: base64Of(p.Bytes()), KeyID: string(p.ID()), CheckNumber: n})
			break
		}
	}
	point := testIdentity(t, "ada").pub.Bytes()
	bad := func(name, about string, b []byte) {
		all = append(all, &vector{Name: "key_" + name, Kind: "key", About: about, Expect: "malformed", Public: base64Of(b)})
	}
	bad("compressed", "a compressed point", append([]byte{2 + point[64]&1}, point[1:33]...))
	bad("hybrid", "the hybrid form, which SEC 1 has too", append([]byte{6 + point[64]&1}, point[1:]...))
	off := append([]byte(nil), point...)
	off[64] ^= 1
	bad("not_on_curve", "", off)
	bad("infinity", "", []byte{0})
	bad("zeros", "", make([]byte, 65))
	bad("short", "", point[:64])
	bad("long", "", append(point[:65:65], 0))
	return all
}

func digestVectors(t *testing.T) []*vector {
	file := practice(t)
	var all []*vector
	opDigest := func(name, about, file, op, same string) {
		m := parseManifest(t, file)
		canonical := opText(t, m, op)
		d := digest("op", []byte(canonical))
		all = append(all, &vector{Name: "op_digest_" + name, Kind: "op_digest", About: about, Expect: "success", Manifest: file, Op: op, Canonical: canonical, Digest: d.String()})
		if same != "" {
			if want := digest("op", []byte(opText(t, parseManifest(t, practice(t)), op))); (d == want) != (same == "same") {
				t.Errorf("op digest %s: %s", name, about)
			}
		}
	}
	for _, op := range []string{"whoami", "list_rooms", "search", "add_note", "book"} {
		opDigest(op, "", file, op, "same")
	}
	replaced := func(old, new string) string {
		if !strings.Contains(file, old) {
			t.Fatalf("%s is not in practice.json", old)
		}
		return strings.Replace(file, old, new, 1)
	}
	opDigest("other_title", "titles change nothing", replaced("Add a note", "Another title"), "add_note", "same")
	opDigest("other_about", "what an arg of a list's object is about changes nothing", replaced("as on the door", "as people say it"), "add_note", "same")
	opDigest("other_status", "later keys change nothing", replaced(`"checked": "schema"`, `"checked": "live"`), "add_note", "same")
	opDigest("other_max", "a limit changes it", replaced(`"max": 2000`, `"max": 2001`), "add_note", "differs")
	opDigest("other_preview", "the op of the preview is part of it", replaced(`"path": "until", "time": "epoch_s"`, `"path": "until", "time": "epoch_ms"`), "book", "differs")
	opDigest("other_name", "the service's name is part of it", replaced(`"Practice"`, `"Practise"`), "whoami", "differs")
	opDigest("number_forms", "1.50 is 1.5", replaced(`"default": 1.5`, `"default": 1.50`), "list_rooms", "same")
	all = append(all, &vector{Name: "op_digest_unknown", Kind: "op_digest", Expect: "no_op", Manifest: file, Op: "toString"})

	args := func(name, about, op, text string) {
		v := &vector{Name: "args_digest_" + name, Kind: "args_digest", About: about, Expect: "success", Manifest: file, Op: op, Args: text, Connection: map[string]string{"room": "r9"}}
		call, err := v.bind(t)
		if err != nil {
			v.Expect = "malformed"
		} else {
			v.Canonical = string(must(jcs(call.Args())))
			v.Digest, v.Sentence = must(ArgsDigest(call)).String(), call.Sentence().Text
		}
		all = append(all, v)
	}
	args("defaults", "a default is filled before hashing", "list_rooms", `{}`)
	args("connection", "so is what the connection has learnt", "add_note", `{"text":"x"}`)
	args("integer", "beyond 2^53, and with its digits", "add_note", `{"text":"x","stars":9007199254740993}`)
	args("integer_text", "the same as text", "add_note", `{"text":"x","stars":"9007199254740993"}`)
	args("number_one", "1", "add_note", `{"text":"x","weight":1}`)
	args("number_one_point", "1.0 is 1", "add_note", `{"text":"x","weight":1.0}`)
	args("number_small", "the shortest form of ECMAScript", "add_note", `{"text":"x","weight":0.0000001}`)
	args("number_large", "", "add_note", `{"text":"x","weight":1e21}`)
	args("number_minus_zero", "", "add_note", `{"text":"x","weight":-0.0}`)
	args("integer_point", "1.0 is no integer", "add_note", `{"text":"x","stars":1.0}`)
	args("boolean", "", "add_note", `{"text":"x","pinned":true}`)
	args("date", "", "add_note", `{"text":"x","on":"2026-12-02"}`)
	args("datetime", "in UTC", "add_note", `{"text":"x","at":"2026-12-02T15:04:05.50+01:00"}`)
	args("cleared", "null clears", "add_note", `{"text":"x","subtitle":null}`)
	args("empty", "empty is not absent", "add_note", `{"text":"x","subtitle":""}`)
	args("order", "the order of keys changes nothing", "add_note", `{"stars":1,"text":"x","room":"r1"}`)
	args("order_other", "the same in another order", "add_note", `{"room":"r1","text":"x","stars":1}`)
	args("list", "the order of a list stays", "add_note", `{"text":"x","tags":["b","a"]}`)
	args("objects", "", "add_note", `{"text":"x","guests":[{"about":"2","name":"Ada"},{"name":"Bo"}]}`)
	args("map_order", "keys by UTF-16 code units: U+1F600 before U+FB33", "add_note", `{"text":"x","labels":{"\ufb33":"1","😀":"2","a":"3","ö":"4"}}`)
	args("map_proto", "a name like any other", "add_note", `{"text":"x","labels":{"__proto__":"1","constructor":"2"}}`)
	args("combining", "é as one code point", "add_note", `{"text":"\u00e9"}`)
	args("combining_two", "é as e and an accent: bytes are not mended", "add_note", `{"text":"e\u0301"}`)
	args("escapes", "", "add_note", `{"text":"\"\\\/\b\f\n\r\t\u0001\u007f\u2028<>&"}`)
	args("surrogate", "half a surrogate pair has no canonical form", "add_note", `{"text":"\ud83d"}`)
	args("surrogate_reversed", "", "add_note", `{"text":"\ude00\ud83d"}`)
	args("surrogate_pair", "a whole one", "add_note", `{"text":"\ud83d\ude00"}`)
	args("duplicate", "", "add_note", `{"text":"x","text":"x"}`)

	say := func(name, about, op, text string) {
		v := &vector{Name: "say_digest_" + name, Kind: "say_digest", About: about, Expect: "success", Manifest: file, Op: op, Args: text, Connection: map[string]string{"room": "r9"}}
		call := must(v.bind(t))
		v.Sentence = call.Sentence().Text
		v.Canonical, v.Digest = v.Sentence, SayDigest(call).String()
		all = append(all, v)
	}
	say("plain", "", "book", `{"room":"r1"}`)
	say("quotes", "", "add_note", `{"text":"“x” & <y>"}`)
	say("newline", "a line break is marked", "add_note", `{"text":"a\nb"}`)
	say("hidden", "what turns the direction of text is marked", "add_note", `{"text":"a\u202eb"}`)
	say("combining", "", "add_note", `{"text":"e\u0301"}`)
	say("read", "a read has no sentence", "whoami", `{}`)

	preview := func(name, about, picked string) {
		v := &vector{Name: "preview_digest_" + name, Kind: "preview_digest", About: about, Expect: "success", Picked: picked}
		if d, err := PreviewDigest(&integrations.Result{JSON: json.RawMessage(picked)}); err != nil {
			v.Expect = "malformed"
		} else {
			dec := json.NewDecoder(strings.NewReader(picked))
			dec.UseNumber()
			var value any
			if err := dec.Decode(&value); err != nil {
				t.Fatal(err)
			}
			v.Canonical, v.Digest = string(must(jcs(numbersAsText(value)))), d.String()
		}
		all = append(all, v)
	}
	preview("money", "", `{"price":1200,"currency":"gbp","until":1790000000}`)
	preview("one", "", `{"price":1}`)
	preview("one_point", "1.0 has other digits than 1", `{"price":1.0}`)
	preview("one_text", "and \"1\" the same as 1", `{"price":"1"}`)
	preview("big", "beyond 2^53", `{"id":9007199254740993}`)
	preview("exponent", "its own digits", `{"n":1E+2}`)
	preview("null", "", `null`)
	preview("words", "", `[true,false,null,{},[],""]`)
	preview("order", "", `{"b":1,"a":2}`)
	preview("nested_order", "", `[{"b":{"d":1,"c":2},"a":3}]`)
	preview("surrogate", "", `{"a":"\ud800"}`)
	preview("duplicate", "", `{"a":1,"a":1}`)
	preview("trailing", "", `{"a":1} {}`)
	return all
}

// opText is what an operation's digest is made of, by a second program of a few lines: the
// members that count are taken from the text by their names.
func opText(t testing.TB, m *integrations.Manifest, op string) string {
	t.Helper()
	var file map[string]any
	if err := json.Unmarshal(m.Raw(), &file); err != nil {
		t.Fatal(err)
	}
	ops := file["ops"].(map[string]any)
	spec, ok := ops[op].(map[string]any)
	if !ok {
		t.Fatalf("there is no %s", op)
	}
	var strip func(v any, path string) any
	// path tells a name of the language from one that the author chose.
	strip = func(v any, path string) any {
		obj, ok := v.(map[string]any)
		if !ok {
			return v
		}
		out := make(map[string]any)
		for k, v := range obj {
			switch {
			case path == "op" && strings.Contains(" title about destructive idempotent labels deprecated status ", " "+k+" "):
			case path == "arg" && k == "about":
			case path == "field" && k == "about":
			case path == "op" && k == "args", path == "arg" && k == "object":
				out[k] = strip(v, "args")
			case path == "args", path == "arg" && k == "of":
				out[k] = strip(v, "arg")
			case path == "op" && k == "pick":
				out[k] = strip(v, "pick")
			case path == "pick" && k == "fields":
				var fields []any
				for _, f := range v.([]any) {
					fields = append(fields, strip(f, "field"))
				}
				out[k] = fields
			default:
				out[k] = v
			}
		}
		return out
	}
	text := map[string]any{"op": op, "spec": strip(spec, "op"), "authorization": file["auth"].(map[string]any)["authorization"]}
	for _, k := range []string{"manifest", "id", "name", "host", "headers", "error", "limits"} {
		if v, ok := file[k]; ok {
			text[k] = v
		}
	}
	if p, ok := spec["preview"].(map[string]any); ok {
		text["preview"] = strip(ops[p["op"].(string)], "op")
	}
	return string(must(jcs(text)))
}

func jcsVectors() []*vector {
	var all []*vector
	add := func(name, about, text, canonical string) {
		v := &vector{Name: "jcs_" + name, Kind: "jcs", About: about, Expect: "success", JSON: text, Canonical: canonical}
		if canonical == "" {
			v.Expect = "malformed"
		}
		all = append(all, v)
	}
	add("rfc8785", "section 3.2.2", `{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`,
		`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`)
	add("rfc8785_keys", "section 3.2.3", `{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
		"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}")
	add("numbers", "", `[0,-0,-0.0,1.0,100,1e2,1e21,1e20,1e-6,1e-7,5e-324,1.7976931348623157e308,9007199254740991,-1.5]`,
		`[0,0,0,1,100,100,1e+21,100000000000000000000,0.000001,1e-7,5e-324,1.7976931348623157e+308,9007199254740991,-1.5]`)
	add("nesting", "", `{"b":[{"z":1,"a":{}}],"a":[]}`, `{"a":[],"b":[{"a":{},"z":1}]}`)
	add("surrogate", "", `"\ud800"`, "")
	add("duplicate", "", `{"a":1,"\u0061":2}`, "")
	return all
}

func handbackVectors(t *testing.T) []*vector {
	s := newStage(t)
	credential := string(validMessages(t)["credential"]) // pair 3, generation 7, refresh wrapA
	base := Handback{V: 1, Credential: "c1", Pair: 4, Secret: integrations.NewSecret("secret-b"), Refresh: integrations.NewSecret(wrapB), ExpiresAt: noon + 3600, ObtainedAt: noon}
	var all []*vector
	add := func(name, about, expect, old string, change func(*Handback)) *vector {
		h := base
		change(&h)
		if err := h.Sign(integrations.NewSecret(old)); err != nil {
			t.Fatal(err)
		}
		v := &vector{Name: "handback_" + name, Kind: "handback", About: about, Expect: expect, Credential: credential, Handback: string(must(marshal(h)))}
		if expect == "success" {
			v.Pair, v.Generation, v.Keep = 4, 8, map[string]string{"tenant": "t1"}
		}
		all = append(all, v)
		return v
	}
	same := func(*Handback) {}
	add("next", "", "success", wrapA, same)
	add("constant", "the provider gave no other refresh token", "success", wrapA, func(h *Handback) { h.Refresh = integrations.Secret{} })
	add("no_end", "", "success", wrapA, func(h *Handback) { h.ExpiresAt = 0 })
	add("keep", "", "success", wrapA, func(h *Handback) { h.Keep = map[string]string{"b": "2", "a": "é"} }).Keep = map[string]string{"b": "2", "a": "é"}
	empty := add("keep_empty", "an empty map is an absent one: the old values stay", "success", wrapA, same)
	empty.Handback = strings.Replace(empty.Handback, `"obtained_at"`, `"keep":{},"obtained_at"`, 1)
	add("other_link", "made with another refresh token: another account's pair", "link", wrapB, same)
	add("other_connection", "", "link", wrapA, func(h *Handback) { h.Credential = "c2" })
	add("replayed", "the stored pair once more", "older", wrapA, func(h *Handback) { h.Pair = 3 })
	add("older", "", "older", wrapA, func(h *Handback) { h.Pair = 1 })
	add("gap", "the second of two comes first", "gap", wrapB, func(h *Handback) { h.Pair = 5 })
	add("gap_linked", "a pair is skipped, though the link verifies", "gap", wrapA, func(h *Handback) { h.Pair = 5 })
	add("huge", "a counter at its end would shut out every later one", "malformed", wrapA, func(h *Handback) { h.Pair = maxCount })
	changed := func(name, about, old, new string) {
		v := add(name, about, "link", wrapA, same)
		v.Handback = strings.Replace(v.Handback, old, new, 1)
	}
	changed("changed_secret", "changed after it was signed", "secret-b", "secret-c")
	changed("changed_refresh", "", wrapB, wrapA)
	changed("changed_end", "", fmt.Sprint(noon+3600), fmt.Sprint(noon+3601))
	v := add("empty_fields", "an empty field is an absent one, for the link too", "success", wrapA, func(h *Handback) { h.ExpiresAt = 0 })
	v.Handback = strings.Replace(v.Handback, `"obtained_at"`, `"expires_at":0,"keep":{},"obtained_at"`, 1)
	order := add("order", "the order of fields changes nothing", "success", wrapA, same)
	order.Handback = string(mustJCS([]byte(order.Handback)))

	e := s.fabricated(PurposeHandback, opA)
	rotated := func(name, about, expect, presented string, pair int64) {
		h := base
		h.Pair = pair
		if err := h.Sign(integrations.NewSecret(wrapB)); err != nil { // the line's last pair: its link is not ours to check
			t.Fatal(err)
		}
		v := &vector{
			Name: "rotated_" + name, Kind: "rotated", About: about, Expect: expect, Credential: credential, Handback: string(must(marshal(h))),
			Envelope: string(must(e.Marshal())), Proof: RotatedProof(integrations.NewSecret(presented), e).String(),
		}
		if expect == "success" {
			v.Pair, v.Generation, v.Keep = pair, 8, map[string]string{"tenant": "t1"}
		}
		all = append(all, v)
	}
	rotated("next", "", "success", wrapA, 4)
	rotated("skips", "the newest of its line", "success", wrapA, 9)
	rotated("other_proof", "", "link", wrapB, 9)
	rotated("older", "", "older", wrapA, 3)
	rotated("huge", "", "malformed", wrapA, maxCount)
	return all
}

func fragmentVectors(t *testing.T) []*vector {
	s := newStage(t)
	e := s.fabricated(PurposeTab, "practice.read")
	e.Space, e.Thread, e.From, e.Tag = "", "", "", nil
	fragment := must(e.Fragment())
	var all []*vector
	add := func(name, about, text string) {
		all = append(all, &vector{Name: "fragment_" + name, Kind: "fragment", About: about, Expect: "malformed", JSON: text})
	}
	all = append(all, &vector{Name: "fragment_success", Kind: "fragment", Expect: "success", JSON: fragment, Envelope: string(must(e.Marshal()))})
	add("version", "", "v2"+fragment[2:])
	add("hash", "without #", "#"+fragment)
	add("access", "", strings.Replace(fragment, ".read.", ".admin.", 1))
	add("parts", "", fragment+".x")
	add("loose", "", fragment[:len(fragment)-1]+"_")
	add("to", "", strings.Replace(fragment, string(e.To), string(e.To)[1:], 1))
	add("largest", "exactly 65,536 characters: it is looked at, and is no base64url", fragment)
	all[len(all)-1].PadTo = MaxMessage
	add("too_big", "one character more", fragment)
	all[len(all)-1].PadTo, all[len(all)-1].Expect = MaxMessage+1, "too_big"
	return all
}

func grantVectors(t *testing.T) []*vector {
	file := practice(t)
	m := parseManifest(t, file)
	valid := validMessages(t)
	write := string(valid["credential"]) // until 1790003600, lent to g1 until 1790000600
	read := strings.Replace(write, `"cap":"write"`, `"cap":"read"`, 1)
	soon := strings.Replace(write, `1790003600`, `1790000100`, 1)
	var all []*vector
	add := func(name, about, expect, credential string, r grantVector) {
		r.ID = grantA
		v := &vector{Name: "grant_" + name, Kind: "grant", About: about, Expect: expect, Manifest: file, Credential: credential, Request: &r, Now: noon}
		if r.Op != "" {
			c := new(Credential)
			if err := parse([]byte(credential), MaxMessage, 1, c); err != nil {
				t.Fatal(err)
			}
			call := must(m.Bind(r.Op, must(parseArgs(r.Args)), connectionValues(c.Connection)))
			v.Canonical, v.Sentence = string(must(jcs(call.Args()))), call.Sentence().Text
		}
		if expect == "success" {
			v.Grant = string(mustJCS(must(marshal(must(v.mint(t))))))
		}
		all = append(all, v)
	}
	book := grantVector{Use: UseOnce, Op: "book", Args: `{"room":"r1"}`, Preview: `{"price":1200,"currency":"gbp"}`}
	with := func(r grantVector, change func(*grantVector)) grantVector { change(&r); return r }
	add("once", "", "success", write, book)
	add("once_connection", "the arg comes from the connection", "success", write, grantVector{Use: UseOnce, Op: "add_note", Args: `{"text":"é"}`})
	add("once_read", "", "success", read, grantVector{Use: UseOnce, Op: "whoami", Args: `{}`})
	add("once_lends", "the access token ends before the grant", "success", soon, with(book, func(r *grantVector) { r.Group = "g1" }))
	add("once_needs_pair", "", "success", write, with(book, func(r *grantVector) { r.Group, r.NeedsPair = "g1", true }))
	add("once_lent_elsewhere", "", "lent", soon, with(book, func(r *grantVector) { r.Group = "g2" }))
	add("once_not_lent", "", "lent", strings.Replace(soon, `"lent":{"group":"g1","until":1790000600},`, ``, 1), with(book, func(r *grantVector) { r.Group = "g1" }))
	add("once_lent_too_short", "", "lent", strings.Replace(soon, `"until":1790000600`, `"until":1790000060`, 1), with(book, func(r *grantVector) { r.Group = "g1" }))
	add("once_cap", "a read-only connection", "cap", read, book)
	add("once_old_cap", "a connection of before caps reads", "cap", strings.Replace(write, `"cap":"write",`, ``, 1), book)
	add("once_no_preview", "what moves money shows its preview", "once", write, with(book, func(r *grantVector) { r.Preview = "" }))
	add("once_preview_of_none", "", "once", write, grantVector{Use: UseOnce, Op: "add_note", Args: `{"text":"x"}`, Preview: `{}`})
	add("once_long", "121 seconds", "expiry", write, with(book, func(r *grantVector) { r.Until = noon + 121 }))
	add("once_ended", "", "expiry", write, with(book, func(r *grantVector) { r.Until = noon }))
	add("once_service", "", "service", strings.Replace(write, `"practice"`, `"other"`, 1), book)
	add("once_charter", "", "once", write, with(book, func(r *grantVector) { r.Charter = "ch1" }))
	add("research", "", "success", read, grantVector{Use: UseResearch, Ops: []string{"whoami", "list_rooms"}, Question: "say.1"})
	add("research_write", "", "once", write, grantVector{Use: UseResearch, Ops: []string{"whoami", "add_note"}, Question: "say.1"})
	add("research_unattended", "a safe POST that is not marked for it", "unattended", read, grantVector{Use: UseResearch, Ops: []string{"search"}, Question: "say.1"})
	add("research_no_question", "", "malformed", read, grantVector{Use: UseResearch, Ops: []string{"whoami"}})
	add("research_no_op", "", "no_op", read, grantVector{Use: UseResearch, Question: "say.1"})
	add("research_unknown_op", "", "no_op", read, grantVector{Use: UseResearch, Ops: []string{"constructor"}, Question: "say.1"})
	add("research_long", "", "expiry", read, grantVector{Use: UseResearch, Ops: []string{"whoami"}, Question: "say.1", Until: noon + 601})
	add("standing", "", "success", read, grantVector{Use: UseStanding, Ops: []string{"whoami"}, Charter: "ch1", Until: noon + 600, Window: &Window{Days: []string{"mon"}, From: "08:00", To: "18:00", TZ: "Europe/London"}})
	add("standing_write", "", "once", write, grantVector{Use: UseStanding, Ops: []string{"add_note"}, Charter: "ch1"})
	add("standing_long", "", "expiry", read, grantVector{Use: UseStanding, Ops: []string{"whoami"}, Charter: "ch1", Until: noon + 604801})
	add("asks", "", "success", strings.Replace(write, `1790003600`, `1799999999`, 1), grantVector{Use: UseAsks, Ops: []string{"add_note"}})
	add("asks_cap", "", "cap", read, grantVector{Use: UseAsks, Ops: []string{"add_note"}})
	add("asks_money", "", "asks", write, grantVector{Use: UseAsks, Ops: []string{"book"}})
	add("asks_read", "reads have standing grants", "no_op", write, grantVector{Use: UseAsks, Ops: []string{"whoami"}})
	add("asks_long", "", "expiry", write, grantVector{Use: UseAsks, Ops: []string{"add_note"}, Until: noon + 28801})
	add("use", "", "malformed", write, grantVector{Use: "always", Ops: []string{"whoami"}})
	return all
}

func memoryVectors() []*vector {
	step := func(do, expect string, generation, pair int64, cap integrations.Access) memoryStep {
		return memoryStep{Do: do, ID: "c1", Generation: generation, Pair: pair, Cap: cap, Expect: expect}
	}
	holds := func(secret string, s memoryStep) memoryStep { s.Secret = secret; return s }
	v := func(name, about string, steps ...memoryStep) *vector {
		return &vector{Name: "memory_" + name, Kind: "memory", About: about, Expect: "success", Steps: steps}
	}
	return []*vector{
		v("newer", "", step("see", "success", 1, 1, "read"), step("see", "success", 1, 1, "read"), step("see", "success", 3, 2, "read")),
		v("older", "an old blob is put back", step("see", "success", 3, 2, "read"), step("see", "older", 2, 2, "read"), step("see", "success", 3, 2, "read")),
		v("older_pair", "a newer blob with a dead pair", step("see", "success", 3, 2, "read"), step("see", "older", 4, 1, "read")),
		v("other", "another blob of the same generation", step("see", "success", 3, 2, "read"), step("see", "older", 3, 3, "read")),
		v("other_content", "another secret in a blob of the same generation and pair", holds("a", step("see", "success", 3, 2, "read")), holds("b", step("see", "older", 3, 2, "read")),
			holds("a", step("see", "success", 3, 2, "read")), holds("b", step("see", "success", 4, 2, "read"))),
		v("other_content_confirmed", "what this device has made itself is held as well", holds("a", step("confirm", "success", 3, 2, "read")), holds("b", step("see", "older", 3, 2, "read"))),
		v("cap_lowered", "the cap that was lowered here comes back", step("see", "success", 1, 1, "write"), step("confirm", "success", 2, 1, "read"), step("see", "older", 1, 1, "write"), step("see", "older", 2, 1, "write"), step("see", "wider", 3, 1, "write")),
		v("cap_raised", "another device raised it, and the member says so", step("see", "success", 1, 1, "read"), step("see", "wider", 2, 1, "write"), step("confirm", "success", 2, 1, "write"), step("see", "success", 2, 1, "write")),
		v("cap_lowered_elsewhere", "", step("see", "success", 1, 1, "write"), step("see", "success", 2, 1, "read"), step("see", "wider", 3, 1, "write")),
		v("cap_absent", "a connection of before caps reads", step("see", "success", 1, 1, ""), step("see", "success", 2, 1, "read"), step("see", "success", 3, 1, "")),
		v("removed", "a connection that has ended does not come back", step("see", "success", 1, 1, "read"), step("remove", "success", 0, 0, ""), step("see", "older", 2, 2, "read")),
	}
}

func legacyVectors(t *testing.T) []*vector {
	s := newStage(t)
	seal := func(grant string) string { return base64Of(must(hpkeSeal(s.bot.pub, nil, []byte(grant)))) }
	var all []*vector
	add := func(name, about, expect string, message string) {
		all = append(all, &vector{Name: "legacy_" + name, Kind: "legacy_op", About: about, Expect: expect, RecipientPKCS8: pkcs8Of(t, s.bot), Message: message, Now: noon, Sentence: "token-a"})
	}
	op := func(sealed string) string {
		return `{"type": "connect.op", "id": "op1", "op": "list", "grant": "` + sealed + `"}`
	}
	good := seal(`{"token":"token-a","expires_at":1790000060}`)
	add("success", "", "success", op(good))
	add("skew", "29 seconds after its end", "success", op(seal(`{"token":"token-a","expires_at":1789999971}`)))
	add("expired", "30 seconds after its end", "expired", op(seal(`{"token":"token-a","expires_at":1789999970}`)))
	add("no_end", "", "expired", op(seal(`{"token":"token-a"}`)))
	add("other_op", "only list is known", "malformed", strings.Replace(op(good), `"list"`, `"delete"`, 1))
	add("v", "an op with v is none of before", "malformed", strings.Replace(op(good), `"type"`, `"v":2,"type"`, 1))
	add("other_key", "", "open", op(base64Of(must(hpkeSeal(s.ada.pub, nil, []byte(`{}`))))))
	add("grant_of_version_1", "an envelope's ciphertext is bound to its header", "open", op(base64Of(must(s.ada.Seal(s.bot.pub, nil, Header{Purpose: PurposeGrant}, []byte(`{"token":"t","expires_at":1790000060}`))).CT)))
	add("token", "", "malformed", op(seal(`{"token":"a b","expires_at":1790000060}`)))

	credential := func(name, about, expect string, to *Identity, blob string) {
		all = append(all, &vector{Name: "legacy_credential_" + name, Kind: "legacy_credential", About: about, Expect: expect, RecipientPKCS8: pkcs8Of(t, s.ada),
			Message: base64Of(must(hpkeSeal(to.pub, nil, []byte(blob)))), Sentence: "token-a"})
	}
	credential("success", "no cap, no kind", "success", s.ada, `{"token":"token-a"}`)
	credential("other_key", "", "open", s.bot, `{"token":"token-a"}`)
	credential("field", "", "malformed", s.ada, `{"token":"token-a","cap":"write"}`)
	credential("token", "", "malformed", s.ada, `{"token":""}`)
	return all
}
