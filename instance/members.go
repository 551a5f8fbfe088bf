package instance

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"time"

	"github.com/elevenmessenger/connect/custody"
)

// maxDay is how long a key of the day may live, with the clocks' skew.
const maxDay = 24*time.Hour + custody.Skew

// A record is what the instance says of a key. It may lie: clients pin keys.
type record struct {
	ID       custody.KeyID     `json:"id"`
	Key      custody.PublicKey `json:"key"`
	Kind     string            `json:"kind"`
	Name     string            `json:"name,omitzero"`
	Group    string            `json:"group,omitzero"`
	Day      *day              `json:"day,omitzero"`
	JoinedAt int64             `json:"joined_at"`
}

type day struct {
	Key   custody.PublicKey `json:"key"`
	Until int64             `json:"until"`
}

var errNoMember = refuse(http.StatusNotFound, "no_such_member", "no member or bot of this space has that key")

// A querier is a pool or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

const memberColumns = "id, key, kind, name, grp, day, day_until, joined_at"

func scanMember(row interface{ Scan(...any) error }, now time.Time) (*record, error) {
	var m record
	var key, dayKey []byte
	var until int64
	if err := row.Scan(&m.ID, &key, &m.Kind, &m.Name, &m.Group, &dayKey, &until, &m.JoinedAt); err != nil {
		return nil, err
	}
	var err error
	if m.Key, err = custody.ParsePublicKey(key); err != nil {
		return nil, err
	}
	if dayKey != nil && until > now.Unix() {
		k, err := custody.ParsePublicKey(dayKey)
		if err != nil {
			return nil, err
		}
		m.Day = &day{k, until}
	}
	return &m, nil
}

func readMember(ctx context.Context, q querier, id custody.KeyID, now time.Time) (*record, error) {
	m, err := scanMember(q.QueryRowContext(ctx, "SELECT "+memberColumns+" FROM members WHERE id = ?", string(id)), now)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errNoMember
	}
	return m, err
}

// membersPage is how many records one answer holds.
const membersPage = 500

type membersAnswer struct {
	Members []*record     `json:"members"`
	Next    custody.KeyID `json:"next,omitzero"` // what after is to be for the next page
}

func (i *Instance) getMembers(ctx context.Context, _ *caller, r *http.Request, _ *none) (*membersAnswer, error) {
	q, err := query(r, "after")
	if err != nil {
		return nil, err
	}
	after := q["after"]
	if after != "" && !isKeyID(after) {
		return nil, refuse(http.StatusBadRequest, "malformed", "after is the id of a key")
	}
	rows, err := i.store.read.QueryContext(ctx, "SELECT "+memberColumns+" FROM members WHERE id > ? ORDER BY id LIMIT ?", after, membersPage+1)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := &membersAnswer{Members: []*record{}}
	for rows.Next() {
		m, err := scanMember(rows, i.now())
		if err != nil {
			return nil, err
		}
		out.Members = append(out.Members, m)
	}
	if len(out.Members) > membersPage {
		out.Members = out.Members[:membersPage]
		out.Next = out.Members[membersPage-1].ID
	}
	return out, rows.Err()
}

func (i *Instance) getMember(ctx context.Context, _ *caller, r *http.Request, _ *none) (*record, error) {
	return readMember(ctx, i.store.read, custody.KeyID(r.PathValue("id")), i.now())
}

type meRequest struct {
	Name  *string `json:"name,omitzero"`
	Group *string `json:"group,omitzero"`
}

// putMe changes what a key says of itself.
func (i *Instance) putMe(ctx context.Context, c *caller, _ *http.Request, req *meRequest) (me *record, err error) {
	if req.Name != nil && !isName(*req.Name) {
		return nil, errName
	}
	if req.Group != nil && (!c.bot || *req.Group != "" && !isID(*req.Group)) {
		return nil, errGroup
	}
	err = i.store.change(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE members SET name = coalesce(?, name), grp = coalesce(?, grp) WHERE id = ?", req.Name, req.Group, string(c.id))
		if err != nil {
			return err
		}
		me, err = readMember(ctx, tx, c.id, i.now())
		return err
	})
	return me, err
}

// putDay publishes a bot's key of the day.
func (i *Instance) putDay(ctx context.Context, c *caller, _ *http.Request, req *day) (me *record, err error) {
	now := i.now()
	switch {
	case !c.bot:
		return nil, refuse(http.StatusForbidden, "not_a_bot", "only a bot has a key of the day")
	case req.Key.IsZero():
		return nil, refuse(http.StatusBadRequest, "malformed", "key is missing")
	case req.Key.ID() == c.id:
		return nil, refuse(http.StatusBadRequest, "malformed", "the key of the day is another key than the bot's own")
	case req.Until <= now.Unix() || req.Until > now.Add(maxDay).Unix():
		return nil, refuse(http.StatusBadRequest, "until", "until is in seconds since 1970, ahead, and at most 24 hours")
	}
	err = i.store.change(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE members SET day = ?, day_until = ? WHERE id = ?", req.Key.Bytes(), req.Until, string(c.id))
		if err != nil {
			return err
		}
		me, err = readMember(ctx, tx, c.id, now)
		return err
	})
	return me, err
}
