package instance

import (
	"context"
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/elevenmessenger/connect/custody"
)

const (
	loginTime   = 2 * time.Minute
	sessionTime = 24 * time.Hour
	maxSessions = 64    // of one key: the oldest ends
	maxMembers  = 10000 // of the space
	maxName     = 128   // bytes
)

type spaceAnswer struct {
	V      int    `json:"v"`
	Space  string `json:"space"`
	Invite bool   `json:"invite"` // whether joining takes one
}

func (i *Instance) getSpace(context.Context, *http.Request, *none) (*spaceAnswer, error) {
	return &spaceAnswer{1, i.cfg.Space, i.cfg.Invite != ""}, nil
}

type loginRequest struct {
	Key custody.PublicKey `json:"key"`
}

type loginAnswer struct {
	Space  string        `json:"space"`
	Sealed custody.Bytes `json:"sealed"` // encapsulated key ‖ ciphertext of the nonce
	Until  int64         `json:"until"`
}

// postLogin seals a nonce to a key, which need not be known: it may be about to join.
func (i *Instance) postLogin(_ context.Context, _ *http.Request, req *loginRequest) (*loginAnswer, error) {
	if req.Key.IsZero() {
		return nil, refuse(http.StatusBadRequest, "malformed", "key is missing")
	}
	until := i.now().Add(loginTime)
	key, err := ecdh.P256().NewPublicKey(req.Key.Bytes())
	if err != nil {
		return nil, err
	}
	to, err := hpke.NewDHKEMPublicKey(key)
	if err != nil {
		return nil, err
	}
	sealed, err := hpke.Seal(to, hpke.HKDFSHA256(), hpke.AES256GCM(), loginInfo(i.cfg.Space), i.newNonce(req.Key.ID(), until))
	if err != nil {
		return nil, err
	}
	return &loginAnswer{i.cfg.Space, sealed, until.Unix()}, nil
}

// loginInfo is "connect/v1 login" ‖ lp(space).
func loginInfo(space string) []byte {
	b := []byte("connect/v1 login")
	b = binary.BigEndian.AppendUint32(b, uint32(len(space)))
	return append(b, space...)
}

// A nonce is 16 random bytes, its end, and a MAC over both and the key's id: whoever asks for
// many fills nothing here, and a nonce that was sealed to one key is none for another.
const nonceSize = 16 + 8 + sha256.Size

func (i *Instance) newNonce(id custody.KeyID, until time.Time) []byte {
	n := make([]byte, 16, nonceSize)
	rand.Read(n)
	n = binary.BigEndian.AppendUint64(n, uint64(until.Unix()))
	return append(n, i.nonceMAC(n, id)...)
}

func (i *Instance) nonceMAC(n []byte, id custody.KeyID) []byte {
	m := hmac.New(sha256.New, i.login[:])
	m.Write(n[:24])
	m.Write([]byte(id))
	return m.Sum(nil)
}

// checkNonce takes a nonce once.
func (i *Instance) checkNonce(n []byte, id custody.KeyID) error {
	bad := refuse(http.StatusForbidden, "nonce", "this is not a nonce that was sealed to that key in the last two minutes, or it was used: begin the login again")
	if len(n) != nonceSize || !hmac.Equal(n[24:], i.nonceMAC(n, id)) {
		return bad
	}
	until := time.Unix(int64(binary.BigEndian.Uint64(n[16:])), 0)
	if now := i.now(); !now.Before(until) || !i.spent.take([16]byte(n[:16]), until, now) {
		return bad
	}
	return nil
}

// spent remembers the nonces that were taken, until their end.
type spent struct {
	mu   sync.Mutex
	seen map[[16]byte]time.Time
	next time.Time // when to forget
}

func (s *spent) take(n [16]byte, until, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = make(map[[16]byte]time.Time)
	}
	if now.After(s.next) {
		for k, u := range s.seen {
			if !now.Before(u) {
				delete(s.seen, k)
			}
		}
		s.next = now.Add(loginTime)
	}
	if _, used := s.seen[n]; used {
		return false
	}
	s.seen[n] = until
	return true
}

type joinRequest struct {
	Kind   string `json:"kind"` // member or bot
	Name   string `json:"name,omitzero"`
	Group  string `json:"group,omitzero"` // of a bot
	Invite string `json:"invite,omitzero"`
}

type sessionRequest struct {
	Key   custody.PublicKey `json:"key"`
	Nonce custody.Bytes     `json:"nonce"`
	Join  *joinRequest      `json:"join,omitzero"` // for a key that is not known yet
}

type sessionAnswer struct {
	Session string  `json:"session"`
	Until   int64   `json:"until"`
	Me      *record `json:"me"`
}

// postSession gives a session for an opened nonce. A key that is not known joins by the same
// request, once it has shown that it opens what is sealed to it.
func (i *Instance) postSession(ctx context.Context, _ *http.Request, req *sessionRequest) (*sessionAnswer, error) {
	if req.Key.IsZero() {
		return nil, refuse(http.StatusBadRequest, "malformed", "key is missing")
	}
	id := req.Key.ID()
	if req.Join != nil {
		if err := req.Join.check(); err != nil {
			return nil, err
		}
	}
	if err := i.checkNonce(req.Nonce, id); err != nil {
		return nil, err
	}
	var raw [32]byte
	rand.Read(raw[:])
	token := base64.RawURLEncoding.EncodeToString(raw[:])
	now := i.now()
	until := now.Add(sessionTime)
	out := &sessionAnswer{Session: token, Until: until.Unix()}
	err := i.store.change(ctx, func(tx *sql.Tx) error {
		me, err := readMember(ctx, tx, id, now)
		if errors.Is(err, errNoMember) {
			if me, err = i.join(ctx, tx, req, now); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		out.Me = me
		if _, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE member = ?1 AND hash NOT IN (SELECT hash FROM sessions WHERE member = ?1 ORDER BY made DESC LIMIT ?2)",
			string(id), maxSessions-1); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO sessions (hash, member, made, until) VALUES (?, ?, ?, ?)", tokenHash(token), string(id), now.Unix(), until.Unix())
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (j *joinRequest) check() error {
	switch {
	case j.Kind != "member" && j.Kind != "bot":
		return refuse(http.StatusBadRequest, "malformed", "kind is member or bot")
	case !isName(j.Name):
		return errName
	case j.Group != "" && (j.Kind != "bot" || !isID(j.Group)):
		return errGroup
	}
	return nil
}

var (
	errName  = refuse(http.StatusBadRequest, "malformed", "a name has at most %d bytes and no control characters", maxName)
	errGroup = refuse(http.StatusBadRequest, "malformed", "group is a bot's, 1 to 64 letters, digits, _, - and dots")
)

// isName says whether s may be shown. It is the key's own choice, and proves nothing.
func isName(s string) bool {
	return len(s) <= maxName && utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c >= 0x7f && c < 0xa0 })
}

func (i *Instance) join(ctx context.Context, tx *sql.Tx, req *sessionRequest, now time.Time) (*record, error) {
	j := req.Join
	if j == nil {
		return nil, refuse(http.StatusForbidden, "unknown_key", "this key has not joined the space")
	}
	if i.cfg.Invite != "" {
		// Both digests have one length: the comparison tells nothing of the invite.
		have, want := sha256.Sum256([]byte(j.Invite)), sha256.Sum256([]byte(i.cfg.Invite))
		if !hmac.Equal(have[:], want[:]) {
			return nil, refuse(http.StatusForbidden, "invite", "this is not the space's invite; its operator has it")
		}
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM members").Scan(&n); err != nil {
		return nil, err
	}
	if n >= maxMembers {
		return nil, refuse(http.StatusForbidden, "full", "the space is full")
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO members (id, key, kind, name, grp, joined_at) VALUES (?, ?, ?, ?, ?, ?)",
		string(req.Key.ID()), req.Key.Bytes(), j.Kind, j.Name, j.Group, now.Unix())
	if err != nil {
		return nil, err
	}
	return readMember(ctx, tx, req.Key.ID(), now)
}

func tokenHash(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// bearer returns the session that a request shows, or "".
func bearer(r *http.Request) string {
	v := r.Header.Values("Authorization")
	if len(v) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(v[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return token
}

// session returns who a session's token belongs to.
func (i *Instance) session(ctx context.Context, token string) (*caller, error) {
	if len(token) != 43 {
		return nil, errSession
	}
	c := &caller{hash: tokenHash(token)}
	err := i.store.read.QueryRowContext(ctx, "SELECT m.id, m.kind = 'bot' FROM sessions s JOIN members m ON m.id = s.member WHERE s.hash = ? AND s.until > ?",
		c.hash, i.now().Unix()).Scan(&c.id, &c.bot)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errSession
	}
	return c, err
}

func (i *Instance) deleteSession(ctx context.Context, c *caller, _ *http.Request, _ *none) (*none, error) {
	err := i.store.change(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE hash = ?", c.hash)
		return err
	})
	i.hub.notify(c.id) // streams of it look at their session again
	return new(none), err
}
