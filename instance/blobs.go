package instance

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/custody"
)

// maxBlobs is how many ids one owner may have used, deleted ones included. A blob is one
// envelope, so its size is a message's.
const maxBlobs = 2000

type blob struct {
	ID         string         `json:"id"`
	Generation int64          `json:"generation"`
	At         int64          `json:"at"`
	Deleted    bool           `json:"deleted,omitzero"`
	Size       int64          `json:"size,omitzero"`     // in a list: bytes of the envelope
	Envelope   jsontext.Value `json:"envelope,omitzero"` // of one blob
}

type blobsAnswer struct {
	Blobs []*blob `json:"blobs"`
}

var errNoBlob = refuse(http.StatusNotFound, "no_such_blob", "this key has no blob of that id")

// conflict says which generation stands in the way.
func conflict(generation int64) error {
	e := refuse(http.StatusConflict, "conflict", "the blob is of another generation than the one expected: read it again first")
	e.generation = generation
	return e
}

// getBlobs lists the caller's own, deleted ones too, without what is in them.
func (i *Instance) getBlobs(ctx context.Context, c *caller, _ *http.Request, _ *none) (*blobsAnswer, error) {
	rows, err := i.store.read.QueryContext(ctx, "SELECT id, generation, at, envelope IS NULL, coalesce(length(envelope), 0) FROM blobs WHERE owner = ? ORDER BY id", string(c.id))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := &blobsAnswer{Blobs: []*blob{}}
	for rows.Next() {
		b := new(blob)
		if err := rows.Scan(&b.ID, &b.Generation, &b.At, &b.Deleted, &b.Size); err != nil {
			return nil, err
		}
		out.Blobs = append(out.Blobs, b)
	}
	return out, rows.Err()
}

func readBlob(ctx context.Context, q querier, owner custody.KeyID, id string) (*blob, error) {
	b := &blob{ID: id}
	var text []byte
	err := q.QueryRowContext(ctx, "SELECT generation, at, envelope FROM blobs WHERE owner = ? AND id = ?", string(owner), id).Scan(&b.Generation, &b.At, &text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errNoBlob
	}
	b.Deleted, b.Envelope = text == nil, text
	return b, err
}

func (i *Instance) getBlob(ctx context.Context, c *caller, r *http.Request, _ *none) (*blob, error) {
	b, err := readBlob(ctx, i.store.read, c.id, r.PathValue("id"))
	if err == nil && b.Deleted {
		e := refuse(http.StatusGone, "deleted", "the blob was deleted")
		e.generation = b.Generation
		return nil, e
	}
	return b, err
}

type blobRequest struct {
	Expect     *int64         `json:"expect"`              // the generation that is replaced; 0: none is there
	Generation int64          `json:"generation,omitzero"` // the new one; left out: expect + 1
	Envelope   jsontext.Value `json:"envelope"`
}

// putBlob replaces a blob of exactly the generation that is expected.
func (i *Instance) putBlob(ctx context.Context, c *caller, r *http.Request, req *blobRequest) (*blob, error) {
	id := r.PathValue("id")
	if !isID(id) {
		return nil, refuse(http.StatusBadRequest, "malformed", "id is 1 to 64 letters, digits, _, - and dots")
	}
	if req.Expect == nil || *req.Expect < 0 || *req.Expect >= maxCount {
		return nil, refuse(http.StatusBadRequest, "malformed", "expect is the generation that is replaced, 0 for a new blob")
	}
	generation := req.Generation
	if generation == 0 {
		generation = *req.Expect + 1
	}
	if generation <= *req.Expect || generation > maxCount {
		return nil, refuse(http.StatusBadRequest, "generation", "a new generation is above the one that it replaces")
	}
	e, text, err := i.envelope(req.Envelope, c.id)
	if err != nil {
		return nil, err
	}
	switch {
	case e.To != c.id:
		return nil, refuse(http.StatusForbidden, "not_yours", "a blob is sealed to its owner")
	case e.Purpose != custody.PurposeIdentity && e.Purpose != custody.PurposeCredential && e.Purpose != custody.PurposeSnapshot:
		return nil, refuse(http.StatusBadRequest, "purpose", "an envelope of this purpose is no blob")
	case e.Purpose == custody.PurposeCredential && !strings.HasSuffix(e.Op, "."+strconv.FormatInt(generation, 10)):
		return nil, refuse(http.StatusBadRequest, "generation", "the envelope says another generation than the request")
	}
	out := &blob{ID: id, Generation: generation}
	return out, i.store.change(ctx, func(tx *sql.Tx) error {
		have, err := readBlob(ctx, tx, c.id, id)
		switch {
		case errors.Is(err, errNoBlob):
			have = new(blob)
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM blobs WHERE owner = ?", string(c.id)).Scan(&n); err != nil {
				return err
			}
			if n >= maxBlobs {
				return refuse(http.StatusForbidden, "full", "one key uses at most %d ids of blobs, deleted ones included", maxBlobs)
			}
		case err != nil:
			return err
		case have.Generation == generation && bytes.Equal(have.Envelope, text):
			out.At = have.At
			return nil // the answer was lost
		}
		if have.Generation != *req.Expect {
			return conflict(have.Generation)
		}
		out.At = i.now().Unix()
		_, err = tx.ExecContext(ctx, "INSERT INTO blobs (owner, id, generation, at, envelope) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET generation = excluded.generation, at = excluded.at, envelope = excluded.envelope",
			string(c.id), id, generation, out.At, text)
		return err
	})
}

// deleteBlob leaves the next generation in a blob's place, so that no older one comes back.
func (i *Instance) deleteBlob(ctx context.Context, c *caller, r *http.Request, _ *none) (*blob, error) {
	q, err := query(r, "expect")
	if err != nil {
		return nil, err
	}
	expect, err := number(q["expect"], "expect")
	if err != nil {
		return nil, err
	}
	if expect == 0 || expect >= maxCount {
		return nil, refuse(http.StatusBadRequest, "malformed", "expect is the generation that is deleted, in the query")
	}
	var out *blob
	err = i.store.change(ctx, func(tx *sql.Tx) error {
		have, err := readBlob(ctx, tx, c.id, r.PathValue("id"))
		switch {
		case err != nil:
			return err
		case have.Deleted && have.Generation == expect+1:
			out = have
			return nil // the answer was lost
		case have.Deleted || have.Generation != expect:
			return conflict(have.Generation)
		}
		out = &blob{ID: have.ID, Generation: expect + 1, At: i.now().Unix(), Deleted: true}
		_, err = tx.ExecContext(ctx, "UPDATE blobs SET generation = ?, at = ?, envelope = NULL WHERE owner = ? AND id = ?", out.Generation, out.At, string(c.id), have.ID)
		return err
	})
	return out, err
}
