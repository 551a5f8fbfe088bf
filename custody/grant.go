package custody

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// A Use says what a grant is for.
type Use string

// The uses of a grant.
const (
	UseOnce     Use = "once"     // one operation, read or write
	UseResearch Use = "research" // reads for one message
	UseStanding Use = "standing" // reads of a charter's own runs, or of an MCP grantee
	UseAsks     Use = "asks"     // writes that an assistant's own prompt confirms
)

// The times around grants.
const (
	// Skew is accepted between two clocks.
	Skew = 30 * time.Second
	// RefreshSkew is how long an access token must outlive a grant for its refresh token
	// to stay at home.
	RefreshSkew = time.Minute
)

// Lifetime returns how long a grant of this use is minted for at most, and how long a
// sidecar lets one live. A standing grant is minted to the end that the member chose.
func (u Use) Lifetime() (mint, allow time.Duration) {
	switch u {
	case UseOnce:
		return 2 * time.Minute, 5 * time.Minute
	case UseResearch:
		return 10 * time.Minute, 15 * time.Minute
	case UseStanding:
		return 7 * 24 * time.Hour, 7 * 24 * time.Hour
	case UseAsks:
		return 8 * time.Hour, 8 * time.Hour
	}
	return 0, 0
}

// Why a grant is not minted, for [errors.Is]; beside them [ErrLent].
var (
	ErrCap        = errors.New("beyond what the connection or grant allows")
	ErrService    = errors.New("another service than the connection's")
	ErrNoOp       = errors.New("no such operation, or none that is granted")
	ErrOnce       = errors.New("a write is granted once, for one operation")
	ErrExpiry     = errors.New("longer than such a grant may live")
	ErrAsks       = errors.New("what moves money or cannot be undone is not left to another program's prompt")
	ErrUnattended = errors.New("this operation does not run without a person")
)

// Why a grant does not let an operation run, for [errors.Is]; beside them ErrCap, ErrService,
// ErrNoOp, ErrOnce, ErrAsks and ErrUnattended.
var (
	ErrExpired = errors.New("outside of its time")
	ErrConsent = errors.New("not what the member consented to")
)

// Once binds a grant to one operation with its args and the sentence that was read.
type Once struct {
	Op      string  `json:"op"`
	Text    Digest  `json:"op_sha256"`
	Args    Digest  `json:"args_sha256"`
	Say     Digest  `json:"say_sha256"`
	Lang    string  `json:"lang"`
	Preview *Digest `json:"preview_sha256,omitzero"`
}

// A Window says when a standing grant may be used.
type Window struct {
	Days []string `json:"days"` // "mon" to "sun"
	From string   `json:"from"` // "08:00"
	To   string   `json:"to"`   // "18:00"
	TZ   string   `json:"tz"`   // a name of the IANA time zone database
}

// A Grant lends a bot the use of a connection. Times are seconds since 1970 UTC.
type Grant struct {
	V          int                        `json:"v"`
	ID         string                     `json:"id"`
	Service    string                     `json:"service"`
	Access     integrations.Access        `json:"access"`
	Use        Use                        `json:"use"`
	IAT        int64                      `json:"iat"`
	Exp        int64                      `json:"exp"`
	Kind       string                     `json:"kind"`
	Secret     integrations.Secret        `json:"secret"`
	Refresh    integrations.Secret        `json:"refresh,omitzero"`
	Broker     string                     `json:"broker,omitzero"`
	ExpiresAt  int64                      `json:"expires_at,omitzero"`
	Keep       map[string]string          `json:"keep,omitempty"`
	Credential string                     `json:"credential"`
	Pair       int64                      `json:"pair"`
	Account    *Account                   `json:"account,omitzero"`
	Connection map[string]ConnectionValue `json:"connection,omitempty"`
	Once       *Once                      `json:"once,omitzero"`
	Ops        map[string]Digest          `json:"ops,omitempty"`
	Question   string                     `json:"question,omitzero"`
	Charter    string                     `json:"charter,omitzero"`
	Window     *Window                    `json:"window,omitzero"`
}

// A GrantRequest says what is to be granted.
type GrantRequest struct {
	ID  string // a grant's id to mint again; "" makes one
	Use Use

	// For UseOnce: the call as it was read and confirmed, the language of the sentence, and
	// the preview that was shown.
	Call    *integrations.Call
	Lang    string // "en" unless said
	Preview *integrations.Result

	// For the other uses: the operations, and the end; zero is as long as may be.
	Ops      []string
	Until    time.Time
	Question string
	Charter  string
	Window   *Window

	// Group is the bot's group (its record says it). The refresh token of a service that
	// rotates goes along only where Credential.Lend has lent it to that group.
	Group string

	// NeedsPair lends the refresh token though the access token's end is not known: a 401
	// has proved it stale.
	NeedsPair bool
}

// MintGrant makes a grant from a connection. It refuses what is beyond the connection's cap,
// another service, an operation that is not there, a write that is not for once, and an end
// beyond what the use allows.
func MintGrant(m *integrations.Manifest, c *Credential, req GrantRequest, now time.Time) (*Grant, error) {
	if c.Service != m.ID {
		return nil, fmt.Errorf("%w: the connection is to %s", ErrService, c.Service)
	}
	mint, _ := req.Use.Lifetime()
	if mint == 0 {
		return nil, fmt.Errorf("%w: the use is not known", ErrMalformed)
	}
	g := &Grant{
		V: 1, ID: req.ID, Service: c.Service, Use: req.Use, IAT: now.Unix(), Kind: c.Kind, Secret: c.Secret,
		ExpiresAt: c.ExpiresAt, Keep: c.Keep, Credential: c.ID, Pair: c.Pair, Account: c.Account, Connection: c.Connection,
		Question: req.Question, Charter: req.Charter, Window: req.Window,
	}
	if g.ID == "" {
		g.ID = NewID()
	}
	end := now.Add(mint)
	if !req.Until.IsZero() {
		if req.Until.After(end) {
			return nil, fmt.Errorf("%w: %s lives at most %s", ErrExpiry, req.Use, mint)
		}
		end = req.Until
	}
	if g.Exp = end.Unix(); g.Exp <= g.IAT {
		return nil, fmt.Errorf("%w: it would have ended already", ErrExpiry)
	}
	var err error
	if req.Use == UseOnce {
		err = g.bindOnce(m, req)
	} else {
		err = g.bindOps(m, req)
	}
	if err != nil {
		return nil, err
	}
	if !c.CapAllows(g.Access) {
		return nil, fmt.Errorf("%w: this connection is read-only", ErrCap)
	}
	if !c.Refresh.IsZero() && lends(c, end, req.NeedsPair) {
		if rotates(m) && (c.Lent == nil || c.Lent.Group != req.Group || c.Lent.Until < g.Exp) {
			return nil, fmt.Errorf("%w: it is to be lent to this bot's group first", ErrLent)
		}
		g.Refresh, g.Broker = c.Refresh, c.Broker
	}
	if c.Kind == "" { // of before: the manifest's own scheme, read-only
		g.Access, g.Account = "", nil
	}
	return g, g.check()
}

// MintRevoke makes the grant of a [Revoke], which always carries the whole pair.
func MintRevoke(c *Credential, now time.Time) (*Grant, error) {
	mint, _ := UseOnce.Lifetime()
	g := &Grant{
		V: 1, ID: NewID(), Service: c.Service, Access: integrations.Read, Use: UseOnce, IAT: now.Unix(), Exp: now.Add(mint).Unix(),
		Kind: c.Kind, Secret: c.Secret, Refresh: c.Refresh, Broker: c.Broker, ExpiresAt: c.ExpiresAt, Keep: c.Keep,
		Credential: c.ID, Pair: c.Pair, Account: c.Account,
	}
	return g, g.check()
}

// lends says whether the refresh token goes along: a key that is not needed is not lent.
func lends(c *Credential, end time.Time, needsPair bool) bool {
	if needsPair {
		return true
	}
	return c.ExpiresAt != 0 && !time.Unix(c.ExpiresAt, 0).After(end.Add(RefreshSkew))
}

func rotates(m *integrations.Manifest) bool {
	return m.Auth.OAuth != nil && m.Auth.OAuth.Refresh != nil && m.Auth.OAuth.Refresh.Rotates
}

// binds says whether what the preview of an operation shows is part of the consent.
func binds(op *integrations.Op) bool {
	return op.Preview != nil && (op.Has(integrations.Money) || op.Has(integrations.Irreversible))
}

func (g *Grant) bindOnce(m *integrations.Manifest, req GrantRequest) error {
	if req.Call != nil && req.Call.Manifest != m {
		return fmt.Errorf("%w: the call was bound by another manifest", ErrMalformed)
	}
	if req.Call == nil || len(req.Ops) > 0 || req.Question != "" || req.Charter != "" || req.Window != nil {
		return fmt.Errorf("%w: it names one call and nothing else", ErrOnce)
	}
	text, err := OpDigest(m, req.Call.Op.Name)
	if err != nil {
		return err
	}
	args, err := ArgsDigest(req.Call)
	if err != nil {
		return err
	}
	g.Access = req.Call.Op.Access
	g.Once = &Once{Op: req.Call.Op.Name, Text: text, Args: args, Say: SayDigest(req.Call), Lang: req.Lang}
	if g.Once.Lang == "" {
		g.Once.Lang = "en"
	}
	switch {
	case req.Preview != nil && req.Call.Op.Preview == nil:
		return fmt.Errorf("%w: the operation has no preview", ErrOnce)
	case req.Preview != nil:
		d, err := PreviewDigest(req.Preview)
		if err != nil {
			return err
		}
		g.Once.Preview = &d
	case binds(req.Call.Op):
		return fmt.Errorf("%w: its preview was not shown", ErrOnce)
	}
	return nil
}

func (g *Grant) bindOps(m *integrations.Manifest, req GrantRequest) error {
	if req.Call != nil || req.Preview != nil || req.Lang != "" {
		return fmt.Errorf("%w: only once is for one call", ErrMalformed)
	}
	if w := req.Window; w != nil {
		if _, err := time.LoadLocation(w.TZ); err != nil {
			return fmt.Errorf("%w: the window's time zone is not known", ErrMalformed)
		}
	}
	if len(req.Ops) == 0 {
		return fmt.Errorf("%w: it names no operation", ErrNoOp)
	}
	g.Access = integrations.Read
	if req.Use == UseAsks {
		g.Access = integrations.Write
	}
	g.Ops = make(map[string]Digest, len(req.Ops))
	for _, name := range req.Ops {
		op := m.Op(name)
		if op == nil {
			return fmt.Errorf("%w: %q", ErrNoOp, name)
		}
		err := req.Use.covers(op)
		if err != nil {
			return err
		}
		if g.Ops[name], err = OpDigest(m, name); err != nil {
			return err
		}
	}
	return nil
}

// covers says whether grants of this use, which name operations, may name op.
func (u Use) covers(op *integrations.Op) error {
	switch {
	case u != UseAsks && op.Access == integrations.Write:
		return fmt.Errorf("%w: %s is a write", ErrOnce, op.Name)
	case u != UseAsks && op.SafePost != "" && !op.IsGraphQL() && op.Unattended == "":
		return fmt.Errorf("%w: %s", ErrUnattended, op.Name)
	case u == UseAsks && op.Access != integrations.Write:
		return fmt.Errorf("%w: %s is a read, for a standing grant", ErrNoOp, op.Name)
	case op.Has(integrations.Money) || op.Has(integrations.Irreversible):
		return fmt.Errorf("%w: %s", ErrAsks, op.Name)
	}
	return nil
}

// Live says whether the grant may be used at now, with Skew between two clocks: else
// ErrExpired.
func (g *Grant) Live(now time.Time) error {
	switch {
	case now.Before(time.Unix(g.IAT, 0).Add(-Skew)):
		return fmt.Errorf("%w: it begins in the future", ErrExpired)
	case !now.Before(time.Unix(g.Exp, 0).Add(Skew)):
		return fmt.Errorf("%w: it has ended", ErrExpired)
	}
	return nil
}

// Allows says whether the grant lets a call run: whether the service, the operation's text,
// the args and the sentence, all as the caller's own manifest has them, are what was
// consented to. Where Once.Preview stands, AllowsPreview follows.
func (g *Grant) Allows(call *integrations.Call) error { return g.allows(call, OpDigest) }

func (g *Grant) allows(call *integrations.Call, digest func(*integrations.Manifest, string) (Digest, error)) error {
	op := call.Op
	switch {
	case call.Manifest.ID != g.Service:
		return fmt.Errorf("%w: the grant is for %s", ErrService, g.Service)
	case op.Access != integrations.Read && g.Access != integrations.Write:
		return fmt.Errorf("%w: the grant is for reading", ErrCap)
	}
	granted, named := g.Ops[op.Name]
	if g.Use == UseOnce {
		if g.Once == nil {
			return fmt.Errorf("%w: the grant is for a revoke", ErrNoOp)
		}
		granted, named = g.Once.Text, g.Once.Op == op.Name
	} else if err := g.Use.covers(op); err != nil {
		return err
	}
	if !named {
		return fmt.Errorf("%w: %s", ErrNoOp, op.Name)
	}
	text, err := digest(call.Manifest, op.Name)
	if err != nil {
		return err
	}
	if text != granted {
		return fmt.Errorf("%w: the operation's text differs", ErrConsent)
	}
	if g.Use != UseOnce {
		return nil
	}
	args, err := ArgsDigest(call)
	switch {
	case err != nil:
		return err
	case args != g.Once.Args:
		return fmt.Errorf("%w: the args differ", ErrConsent)
	case SayDigest(call) != g.Once.Say:
		return fmt.Errorf("%w: the sentence differs", ErrConsent)
	case g.Once.Preview == nil && binds(op):
		return fmt.Errorf("%w: no preview was shown", ErrConsent)
	}
	return nil
}

// AllowsPreview says whether the preview, run again just before the write, picked what the
// member was shown.
func (g *Grant) AllowsPreview(preview *integrations.Result) error {
	if g.Once == nil || g.Once.Preview == nil {
		return nil
	}
	d, err := PreviewDigest(preview)
	if err != nil {
		return err
	}
	if d != *g.Once.Preview {
		return fmt.Errorf("%w: the preview differs", ErrConsent)
	}
	return nil
}

// NewID makes the id of an operation or a grant: 128 random bits.
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

var (
	clock   = lazily(`^([01][0-9]|2[0-3]):[0-5][0-9]$`)
	lang    = lazily(`^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$`)
	zone    = lazily(`^(UTC|[A-Z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9_+-]{1,32}){1,2})$`)
	charter = lazily(`^([A-Za-z0-9_.-]{1,64}|mcp:[A-Za-z0-9_-]{43})$`)
)

func (*Grant) purpose() Purpose { return PurposeGrant }
func (*Grant) version() int     { return 1 }

func (g *Grant) bound(h Header, day bool) error {
	switch {
	case (g.Use == UseOnce) != (h.Op != ""):
		return fmt.Errorf("%w grant: its envelope names an op exactly when it is for once", ErrMalformed)
	case day && g.Use != UseOnce && g.Use != UseResearch:
		return fmt.Errorf("%w grant: a key of the day is for what lives minutes", ErrMalformed)
	}
	return nil
}

// check holds a grant against the format and against what its use allows a sidecar to take.
func (g *Grant) check() error {
	bad := func(what string) error { return fmt.Errorf("%w grant: %s", ErrMalformed, what) }
	_, allow := g.Use.Lifetime()
	before := g.Access == "" && g.Kind == "" && g.Account == nil // from a connection of before
	switch {
	case g.V != 1:
		return versionError(g.V)
	case !randomID.MatchString(g.ID):
		return bad("id is not 128 random bits")
	case !serviceID.MatchString(g.Service):
		return bad("service is not an id")
	case g.Access != integrations.Read && g.Access != integrations.Write && !before:
		return bad("access is not known")
	case g.Kind != KindPAT && g.Kind != KindOAuth && !before:
		return bad("kind is not known")
	case allow == 0:
		return bad("use is not known")
	case !goodTime(g.IAT) || !goodTime(g.Exp) || !goodTime(g.ExpiresAt) || g.Exp <= g.IAT:
		return bad("a time is out of range")
	case g.Exp-g.IAT > int64(allow/time.Second):
		return fmt.Errorf("%w: %s lives at most %s", ErrExpiry, g.Use, allow)
	case !goodBroker(g.Broker, g.Refresh):
		return bad("broker is the origin of whoever wrapped refresh, and stands with it")
	case !idPattern.MatchString(g.Credential):
		return bad("credential is not an id")
	case !goodCount(g.Pair):
		return bad("pair is out of range")
	case g.Use == UseOnce && len(g.Ops) > 0 || g.Use != UseOnce && (g.Once != nil || len(g.Ops) == 0):
		return bad("once stands in a grant for once, ops in every other")
	case !goodOps(g.Ops):
		return bad("ops holds what is no operation's digest")
	case g.Once == nil && g.Use == UseOnce && g.Access == integrations.Write:
		return bad("what is for a revoke reads")
	case g.Access == integrations.Write && g.Use != UseOnce && g.Use != UseAsks:
		return ErrOnce
	case g.Access != integrations.Write && g.Use == UseAsks:
		return bad("asks is for writes")
	case g.Use == UseResearch && !idPattern.MatchString(g.Question) || g.Use != UseResearch && g.Question != "":
		return bad("question, an id, stands in a grant for research and nowhere else")
	case g.Use == UseStanding && g.Charter == "" || g.Charter != "" && (g.Use != UseStanding && g.Use != UseAsks || !charter.MatchString(g.Charter)):
		return bad("charter, an id or mcp: and a key's id, stands in a standing grant")
	case g.Window != nil && g.Use != UseStanding:
		return bad("window stands in a standing grant")
	}
	if o := g.Once; o != nil {
		switch {
		case !opID.MatchString(o.Op) || o.Text == Digest{} || o.Args == Digest{} || o.Say == Digest{}:
			return bad("once lacks its op or a digest")
		case o.Preview != nil && *o.Preview == Digest{}:
			return bad("the preview's digest is none")
		case !lang.MatchString(o.Lang):
			return bad("lang is not a language")
		}
	}
	if g.Window != nil {
		if err := g.Window.check(); err != nil {
			return err
		}
	}
	return checkPair("grant", g.Secret, g.Refresh)
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} // as time.Weekday counts

func (w *Window) check() error {
	bad := func(what string) error { return fmt.Errorf("%w window: %s", ErrMalformed, what) }
	for i, d := range w.Days {
		if !slices.Contains(weekdays, d) || slices.Contains(w.Days[:i], d) {
			return bad("a day is not known, or stands twice")
		}
	}
	switch {
	case len(w.Days) == 0:
		return bad("it has no day")
	case !clock.MatchString(w.From) || !clock.MatchString(w.To) || w.From == w.To:
		return bad("from and to are not two times of a day")
	case !zone.MatchString(w.TZ):
		return bad("tz is not a time zone")
	}
	return nil
}

// Contains says whether t lies in the window: on one of its days, from From up to but
// without To, by the clocks of its zone. A window whose To is before its From ends on the
// day after. One whose zone this machine does not know contains nothing.
func (w *Window) Contains(t time.Time) bool {
	loc, err := time.LoadLocation(w.TZ)
	if err != nil {
		return false
	}
	t = t.In(loc)
	now := t.Format("15:04")
	day := int(t.Weekday())
	if w.From < w.To {
		return slices.Contains(w.Days, weekdays[day]) && w.From <= now && now < w.To
	}
	return w.From <= now && slices.Contains(w.Days, weekdays[day]) ||
		now < w.To && slices.Contains(w.Days, weekdays[(day+6)%7])
}

// Seal seals a grant for a bot. The envelope's op is op for a grant for once, and empty for
// every other; day is the bot's key of the day, and only for what lives minutes.
func (g *Grant) Seal(member *Identity, bot PublicKey, day *PublicKey, space, thread, op string) (*Envelope, error) {
	return member.SealMessage(bot, day, Header{Space: space, Thread: thread, Op: op}, g)
}

// OpenGrant opens a grant that a member sealed for a bot, which keeps it: for research,
// standing or asks. One that travels inside an op or a revoke is opened by their OpenGrant.
func OpenGrant(bot *Identity, e *Envelope, member PublicKey, day *Identity) (*Grant, error) {
	g := new(Grant)
	if err := bot.OpenMessage(e, member, day, g); err != nil {
		return nil, err
	}
	return g, nil
}

// For returns the credential as the executor takes it.
func (g *Grant) For() integrations.Credential {
	return integrations.Credential{Kind: g.Kind, Secret: g.Secret, Fields: g.Keep, Connection: connectionValues(g.Connection)}
}
