package local

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/sidecar"
)

type healthAnswer struct {
	OK bool `json:"ok"`
}

// health says whether the sidecar and its store answer.
func (a *API) health(ctx context.Context, _ *none) (*healthAnswer, error) {
	_, err := a.cfg.Sidecar.Counters(ctx)
	return &healthAnswer{err == nil}, err
}

// A botRecord is what members are told of a bot.
type botRecord struct {
	Name  string            `json:"name"`
	ID    custody.KeyID     `json:"id"`
	Key   custody.PublicKey `json:"key"`
	Group string            `json:"group"`
	Day   dayRecord         `json:"day"`
}

type dayRecord struct {
	Key   custody.PublicKey `json:"key"`
	Until int64             `json:"until"` // seconds since 1970 UTC
}

type botsAnswer struct {
	Bots []*botRecord `json:"bots"`
}

func (a *API) bots(context.Context, *none) (*botsAnswer, error) {
	out := &botsAnswer{Bots: []*botRecord{}}
	for _, r := range a.cfg.Sidecar.Records() {
		id := r.Key.ID()
		out.Bots = append(out.Bots, &botRecord{a.cfg.Names[id], id, r.Key, r.Group, dayRecord{r.Day, r.DayUntil}})
	}
	slices.SortFunc(out.Bots, func(x, y *botRecord) int {
		if n := strings.Compare(x.Name, y.Name); n != 0 {
			return n
		}
		return strings.Compare(string(x.ID), string(y.ID))
	})
	return out, nil
}

type messageRequest struct {
	Space   string            `json:"space"`
	Thread  string            `json:"thread"`
	Author  custody.PublicKey `json:"author"` // whom the caller authenticated
	Message jsontext.Value    `json:"message"`
}

type messageAnswer struct {
	Replies []*custody.Envelope `json:"replies"` // to the author, in this order
}

// message hands a message to the sidecar.
func (a *API) message(ctx context.Context, req *messageRequest) (*messageAnswer, error) {
	if req.Author.IsZero() || len(req.Message) == 0 {
		return nil, refuse(http.StatusBadRequest, "malformed", "author and message are needed, and space and thread where the message has them")
	}
	replies, err := a.cfg.Sidecar.Handle(ctx, sidecar.Delivery{Space: req.Space, Thread: req.Thread, Author: req.Author, Data: req.Message})
	return &messageAnswer{append([]*custody.Envelope{}, replies...)}, err
}

type legacyRequest struct {
	Bot     custody.KeyID  `json:"bot"`    // to whom it was sent
	Author  custody.KeyID  `json:"author"` // whom the caller authenticated
	Message jsontext.Value `json:"message"`
}

// legacy hands an op of before to the sidecar. Its result is the answer as it stands.
func (a *API) legacy(ctx context.Context, req *legacyRequest) (jsontext.Value, error) {
	if req.Bot == "" || req.Author == "" || len(req.Message) == 0 {
		return nil, refuse(http.StatusBadRequest, "malformed", "bot, author and message are needed")
	}
	if len(req.Message) > maxLegacy {
		return nil, custody.ErrTooBig
	}
	result, err := a.cfg.Sidecar.HandleLegacy(ctx, req.Bot, req.Author, req.Message)
	if errors.Is(err, sidecar.ErrPurpose) {
		return nil, refuse(http.StatusBadRequest, "purpose", "this sidecar takes no ops of before")
	}
	return result, err
}

type outboxAnswer struct {
	Handbacks []*custody.Envelope `json:"handbacks"`
}

// outbox returns what members have not acknowledged yet; a transport sends it to them again.
func (a *API) outbox(ctx context.Context, _ *none) (*outboxAnswer, error) {
	waiting, err := a.cfg.Sidecar.Waiting(ctx)
	return &outboxAnswer{append([]*custody.Envelope{}, waiting...)}, err
}

type statusAnswer struct {
	Version  string           `json:"version"`
	Uptime   int64            `json:"uptime"` // seconds
	Bots     int              `json:"bots"`
	Counters sidecar.Counters `json:"counters"`
	Links    []Link           `json:"links"`
}

func (a *API) status(ctx context.Context, _ *none) (*statusAnswer, error) {
	c, err := a.cfg.Sidecar.Counters(ctx)
	out := &statusAnswer{Version: a.cfg.Version, Uptime: max(a.cfg.Now().Unix()-c.Started, 0), Bots: len(a.cfg.Sidecar.Records()), Counters: c, Links: []Link{}}
	if a.cfg.Links != nil {
		out.Links = append(out.Links, a.cfg.Links()...)
	}
	return out, err
}

func (a *API) palette(context.Context, *none) (*servicesAnswer, error) { return a.services, nil }
