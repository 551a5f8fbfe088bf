package instance

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/custody"
)

// A member's next device is linked within ten minutes. All of it is in memory: what is sealed
// to a key of minutes never reaches the disk. The code never comes here; both devices hold
// the other's message against it, and what they show is only relayed.
const (
	linkTime  = 10 * time.Minute
	maxOffers = 8    // of one link: a stranger who knows its id cannot keep the device out
	maxLinks  = 4096 // of all members
	macSize   = 32
)

type links struct {
	mu   sync.Mutex
	open map[string]*link
}

type link struct {
	owner    custody.KeyID
	until    time.Time
	offers   []*offer
	answer   jsontext.Value // the identity, sealed to the key of an offer
	answered custody.KeyID  // that key
	mac      custody.Bytes
}

type offer struct {
	Key    custody.PublicKey `json:"key"`
	MAC    custody.Bytes     `json:"mac"`
	ticket string
}

var errNoLink = refuse(http.StatusNotFound, "no_such_link", "there is no such link, or its ten minutes are over")

// get returns a link that is open; l.mu is held.
func (l *links) get(id string, now time.Time) (*link, error) {
	k, ok := l.open[id]
	if !ok || !now.Before(k.until) {
		return nil, errNoLink
	}
	return k, nil
}

// own returns a link of owner's; l.mu is held.
func (l *links) own(id string, owner custody.KeyID, now time.Time) (*link, error) {
	k, err := l.get(id, now)
	if err == nil && k.owner != owner {
		err = errNoLink
	}
	return k, err
}

func (l *links) sweep(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, k := range l.open {
		if !now.Before(k.until) {
			delete(l.open, id)
		}
	}
}

type linkRequest struct {
	ID string `json:"id"`
}

type linkAnswer struct {
	ID     string   `json:"id"`
	Until  int64    `json:"until"`
	Offers []*offer `json:"offers"`
}

// postLink opens a link; one that the member had open ends.
func (i *Instance) postLink(_ context.Context, c *caller, _ *http.Request, req *linkRequest) (*linkAnswer, error) {
	if c.bot {
		return nil, refuse(http.StatusForbidden, "a_bot", "only a member's devices are linked")
	}
	if !isWord(req.ID, 22, 22, false) {
		return nil, refuse(http.StatusBadRequest, "malformed", "id is 22 letters, digits, _ and -")
	}
	l, now := &i.links, i.now()
	l.sweep(now)
	l.mu.Lock()
	defer l.mu.Unlock()
	if k, ok := l.open[req.ID]; ok {
		if k.owner == c.id { // a retry
			return &linkAnswer{req.ID, k.until.Unix(), append([]*offer{}, k.offers...)}, nil
		}
		return nil, refuse(http.StatusConflict, "id_taken", "another link has that id: begin again with another code")
	}
	for id, k := range l.open {
		if k.owner == c.id {
			delete(l.open, id)
		}
	}
	if len(l.open) >= maxLinks {
		return nil, tooMany(linkTime)
	}
	if l.open == nil {
		l.open = make(map[string]*link)
	}
	k := &link{owner: c.id, until: now.Add(linkTime)}
	l.open[req.ID] = k
	return &linkAnswer{req.ID, k.until.Unix(), []*offer{}}, nil
}

func (i *Instance) getLink(_ context.Context, c *caller, r *http.Request, _ *none) (*linkAnswer, error) {
	id := r.PathValue("id")
	i.links.mu.Lock()
	defer i.links.mu.Unlock()
	k, err := i.links.own(id, c.id, i.now())
	if err != nil {
		return nil, err
	}
	return &linkAnswer{id, k.until.Unix(), append([]*offer{}, k.offers...)}, nil
}

func (i *Instance) deleteLink(_ context.Context, c *caller, r *http.Request, _ *none) (*none, error) {
	id := r.PathValue("id")
	i.links.mu.Lock()
	defer i.links.mu.Unlock()
	_, err := i.links.own(id, c.id, i.now())
	if err == nil {
		delete(i.links.open, id)
	}
	return new(none), err
}

type offerRequest struct {
	Key custody.PublicKey `json:"key"`
	MAC custody.Bytes     `json:"mac"` // HMAC-SHA256(code, key)
}

type offerAnswer struct {
	Ticket string `json:"ticket"`
	Until  int64  `json:"until"`
}

// postLinkOffer relays the one-time key of a device that knows the code.
func (i *Instance) postLinkOffer(_ context.Context, r *http.Request, req *offerRequest) (*offerAnswer, error) {
	if req.Key.IsZero() || len(req.MAC) != macSize {
		return nil, refuse(http.StatusBadRequest, "malformed", "key is a one-time key, and mac has %d bytes", macSize)
	}
	i.links.mu.Lock()
	defer i.links.mu.Unlock()
	k, err := i.links.get(r.PathValue("id"), i.now())
	if err != nil {
		return nil, err
	}
	switch {
	case k.answer != nil:
		return nil, refuse(http.StatusConflict, "answered", "this link has been answered: begin another")
	case len(k.offers) >= maxOffers:
		return nil, refuse(http.StatusForbidden, "full", "a link takes %d devices; begin another", maxOffers)
	case slices.ContainsFunc(k.offers, func(o *offer) bool { return o.Key.ID() == req.Key.ID() }):
		return nil, refuse(http.StatusConflict, "id_taken", "that key was offered already; make another")
	}
	var raw [32]byte
	rand.Read(raw[:])
	o := &offer{req.Key, req.MAC, base64.RawURLEncoding.EncodeToString(raw[:])}
	k.offers = append(k.offers, o)
	return &offerAnswer{o.ticket, k.until.Unix()}, nil
}

type linkAnswerRequest struct {
	Envelope jsontext.Value `json:"envelope"` // the identity, sealed to the key of an offer
	MAC      custody.Bytes  `json:"mac"`      // HMAC-SHA256(code, "connect/v1 linked" ‖ the member's key ‖ the one-time key)
}

// postLinkAnswer relays the sealed identity to the device whose offer the owner has checked.
func (i *Instance) postLinkAnswer(_ context.Context, c *caller, r *http.Request, req *linkAnswerRequest) (*none, error) {
	e, text, err := i.envelope(req.Envelope, c.id)
	if err != nil {
		return nil, err
	}
	if e.Purpose != custody.PurposeIdentity || e.Thread != "" {
		return nil, refuse(http.StatusBadRequest, "purpose", "a link is answered with an envelope for identity, outside of a thread")
	}
	if len(req.MAC) != macSize {
		return nil, refuse(http.StatusBadRequest, "malformed", "mac has %d bytes", macSize)
	}
	i.links.mu.Lock()
	defer i.links.mu.Unlock()
	k, err := i.links.own(r.PathValue("id"), c.id, i.now())
	switch {
	case err != nil:
		return nil, err
	case k.answer != nil && bytes.Equal(k.answer, text):
		return new(none), nil // a retry
	case k.answer != nil:
		return nil, refuse(http.StatusConflict, "answered", "this link has been answered: begin another")
	case !slices.ContainsFunc(k.offers, func(o *offer) bool { return o.Key.ID() == e.To }):
		return nil, refuse(http.StatusBadRequest, "reader", "the envelope is not sealed to a key that was offered")
	}
	k.answer, k.answered, k.mac = text, e.To, req.MAC
	return new(none), nil
}

type fetchRequest struct {
	Ticket string `json:"ticket"`
}

type fetchAnswer struct {
	Key      custody.PublicKey `json:"key"` // the member's
	Envelope jsontext.Value    `json:"envelope"`
	MAC      custody.Bytes     `json:"mac"`
}

// postLinkFetch gives the sealed identity to the device that it is for, once.
func (i *Instance) postLinkFetch(ctx context.Context, r *http.Request, req *fetchRequest) (*fetchAnswer, error) {
	id := r.PathValue("id")
	i.links.mu.Lock()
	k, err := i.links.get(id, i.now())
	if err != nil {
		i.links.mu.Unlock()
		return nil, err
	}
	n := slices.IndexFunc(k.offers, func(o *offer) bool { return equal(o.ticket, req.Ticket) })
	var pending bool
	switch {
	case n < 0:
		err = refuse(http.StatusForbidden, "ticket", "that device made no offer here")
	case k.answer == nil:
		pending = true
	case k.offers[n].Key.ID() != k.answered:
		err = refuse(http.StatusForbidden, "ticket", "another device was linked")
	default:
		delete(i.links.open, id)
	}
	i.links.mu.Unlock()
	if pending {
		e := refuse(http.StatusConflict, "pending", "the other device has not answered yet; ask again")
		e.wait = 2 * time.Second
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	m, err := readMember(ctx, i.store.read, k.owner, i.now())
	if err != nil {
		return nil, err
	}
	return &fetchAnswer{m.Key, k.answer, k.mac}, nil
}
