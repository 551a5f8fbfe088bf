package custody

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
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

// Why a grant is not minted, for [errors.Is].
var (
	ErrCap     = errors.New("beyond what the connection allows")
	ErrService = errors.New("another service than the connection's")
	ErrNoOp    = errors.New("no such operation")
	ErrOnce    = errors.New("a write is granted once, for one operation")
	ErrExpiry  = errors.New("longer than such a grant may live")
	ErrAsks    = errors.New("what moves money or cannot be undone is not left to another program's prompt")
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
		g.Refresh, g.Broker = c.Refresh, c.Broker
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

func (g *Grant) bindOnce(m *integrations.Manifest, req GrantRequest) error {
	if req.Call == nil || req.Call.Manifest != m || len(req.Ops) > 0 || req.Question != "" || req.Charter != "" || req.Window != nil {
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
	binds := req.Call.Op.Has(integrations.Money) || req.Call.Op.Has(integrations.Irreversible)
	switch {
	case req.Preview != nil:
		d, err := PreviewDigest(req.Preview)
		if err != nil {
			return err
		}
		g.Once.Preview = &d
	case req.Call.Op.Preview != nil && binds:
		return fmt.Errorf("%w: its preview was not shown", ErrOnce)
	}
	return nil
}

func (g *Grant) bindOps(m *integrations.Manifest, req GrantRequest) error {
	if req.Call != nil {
		return fmt.Errorf("%w: only once is for one call", ErrMalformed)
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
		switch {
		case op == nil:
			return fmt.Errorf("%w: %q", ErrNoOp, name)
		case op.Access == integrations.Write && req.Use != UseAsks:
			return fmt.Errorf("%w: %s is a write", ErrOnce, name)
		case op.Has(integrations.Money) || op.Has(integrations.Irreversible):
			return fmt.Errorf("%w: %s", ErrAsks, name)
		}
		var err error
		if g.Ops[name], err = OpDigest(m, name); err != nil {
			return err
		}
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
	randomID = regexp.MustCompile(`^[A-Za-z0-9_-]{22}$`)
	clock    = regexp.MustCompile(`^([01][0-9]|2[0-3]):[0-5][0-9]$`)
	lang     = regexp.MustCompile(`^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$`)
)

// check holds a grant against the format and against what its use allows a sidecar to take.
func (g *Grant) check() error {
	bad := func(what string) error { return fmt.Errorf("%w grant: %s", ErrMalformed, what) }
	_, allow := g.Use.Lifetime()
	switch {
	case g.V != 1:
		return bad("v is not 1")
	case !randomID.MatchString(g.ID):
		return bad("id is not 128 random bits")
	case !serviceID.MatchString(g.Service):
		return bad("service is not an id")
	case g.Access != integrations.Read && g.Access != integrations.Write:
		return bad("access is not known")
	case allow == 0:
		return bad("use is not known")
	case !goodTime(g.IAT) || !goodTime(g.Exp) || !goodTime(g.ExpiresAt) || g.Exp <= g.IAT:
		return bad("a time is out of range")
	case time.Duration(g.Exp-g.IAT)*time.Second > allow:
		return fmt.Errorf("%w: %s lives at most %s", ErrExpiry, g.Use, allow)
	case g.Kind != KindPAT && g.Kind != KindOAuth:
		return bad("kind is not known")
	case !validToken(g.Secret):
		return bad("secret is not a token")
	case !g.Refresh.IsZero() && !validWrap(g.Refresh):
		return bad("refresh is not a broker's wrap")
	case g.Refresh.IsZero() != (g.Broker == ""):
		return bad("refresh and broker stand together")
	case !idPattern.MatchString(g.Credential):
		return bad("credential is not an id")
	case g.Pair < 0 || g.Pair > 1<<52:
		return bad("pair is out of range")
	case (g.Use == UseOnce) != (g.Once != nil) || (g.Use == UseOnce) == (len(g.Ops) > 0):
		return bad("once stands in a grant for once, ops in every other")
	case g.Access == integrations.Write && g.Use != UseOnce && g.Use != UseAsks:
		return fmt.Errorf("%w", ErrOnce)
	case g.Once != nil && !lang.MatchString(g.Once.Lang):
		return bad("lang is not a language")
	case (g.Question != "") != (g.Use == UseResearch):
		return bad("question stands in a grant for research")
	case g.Charter != "" && g.Use != UseStanding && g.Use != UseAsks:
		return bad("charter stands in a standing grant")
	case g.Window != nil && g.Use != UseStanding:
		return bad("window stands in a standing grant")
	}
	if w := g.Window; w != nil {
		days := []string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}
		for i, d := range w.Days {
			if !slices.Contains(days, d) || slices.Contains(w.Days[:i], d) {
				return bad("a day of the window is not known, or stands twice")
			}
		}
		if _, err := time.LoadLocation(w.TZ); len(w.Days) == 0 || !clock.MatchString(w.From) || !clock.MatchString(w.To) || w.TZ == "" || err != nil {
			return bad("the window is not days, two times and a zone")
		}
	}
	return nil
}

// Seal seals a grant for a bot. The envelope's op is op for a grant for once, and empty for
// every other; day is the bot's key of the day, and only for what lives minutes.
func (g *Grant) Seal(member *Identity, bot PublicKey, day *PublicKey, space, thread, op string) (*Envelope, error) {
	if err := g.check(); err != nil {
		return nil, err
	}
	if (g.Use == UseOnce) != (op != "") {
		return nil, fmt.Errorf("%w grant: its envelope names an op exactly when it is for once", ErrMalformed)
	}
	if day != nil && g.Use != UseOnce && g.Use != UseResearch {
		return nil, fmt.Errorf("%w grant: a key of the day is for what lives minutes", ErrMalformed)
	}
	pt, err := marshal(g)
	if err != nil {
		return nil, err
	}
	return member.Seal(bot, day, Header{Purpose: PurposeGrant, Space: space, Thread: thread, Op: op}, pt)
}

// OpenGrant opens a grant that a member sealed for a bot.
func OpenGrant(bot *Identity, e *Envelope, member PublicKey, day *Identity) (*Grant, error) {
	pt, err := openAs(bot, e, PurposeGrant, member, day)
	if err != nil {
		return nil, err
	}
	g := new(Grant)
	if err := parse(pt, MaxMessage, g); err != nil {
		return nil, err
	}
	if err := g.check(); err != nil {
		return nil, err
	}
	if (g.Use == UseOnce) != (e.Op != "") {
		return nil, fmt.Errorf("%w grant: its envelope names an op exactly when it is for once", ErrMalformed)
	}
	return g, nil
}

// For returns the credential as the executor takes it.
func (g *Grant) For() integrations.Credential {
	return integrations.Credential{Kind: g.Kind, Secret: g.Secret, Fields: g.Keep, Connection: connectionValues(g.Connection)}
}
