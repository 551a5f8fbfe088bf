package sidecar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// What an op of before may do, and nothing else: it knows one service and one operation.
const (
	legacyService = "dnsimple"
	legacyOp      = "list_domains"
)

// HandleLegacy takes an op of before, which has no v and whose author is whom the transport
// authenticated, and returns its result, as that version reads it. bot is whom it was sent to.
func (s *Sidecar) HandleLegacy(ctx context.Context, bot, author custody.KeyID, data []byte) ([]byte, error) {
	if !s.legacy {
		return nil, fmt.Errorf("%w: ops of before are switched off", ErrPurpose)
	}
	b := s.bots[bot]
	if b == nil {
		return nil, custody.ErrNotMine
	}
	o, err := custody.ParseLegacyOp(data)
	if err != nil {
		return nil, err
	}
	if !s.begin() {
		return nil, ErrStopping
	}
	defer s.inFlight.Done()
	r := custody.LegacyResult{Type: "connect.result", ID: o.ID}
	domains, err := s.listDomains(ctx, b, author, o)
	if err != nil {
		s.counters.Failed.Add(1)
		r.Error = clip(err.Error())
	} else {
		r.OK, r.Domains = true, domains
	}
	out, err := json.Marshal(r)
	if err == nil && len(out) > custody.MaxMessage {
		return json.Marshal(custody.LegacyResult{Type: r.Type, ID: r.ID, Error: errManyDomains.Error()})
	}
	return out, err
}

var errManyDomains = errors.New("there are more domains than fit in one message")

func (s *Sidecar) listDomains(ctx context.Context, b *bot, author custody.KeyID, o *custody.LegacyOp) ([]custody.LegacyDomain, error) {
	g, err := b.id.OpenLegacyGrant(o, s.now())
	switch {
	case errors.Is(err, custody.ErrExpired):
		return nil, errors.New("the grant's time is over")
	case err != nil:
		return nil, errors.New("the grant does not open")
	}
	m := s.registry.Get(legacyService)
	if m == nil || m.Op(legacyOp) == nil {
		return nil, errors.New("this bot does not know the service")
	}
	ctx, cancel := context.WithTimeout(ctx, s.opTimeout)
	defer cancel()
	if _, ok := s.bounds.enter(ctx, author); !ok {
		return nil, errors.New("the bot has too much to do just now")
	}
	defer s.bounds.leave(author)
	cred := integrations.Credential{Kind: integrations.PAT, Secret: g.Token}
	if cred.Connection, err = s.legacyConnection(ctx, m, cred); err != nil {
		return nil, err
	}
	s.counters.Operations.Add(1)
	var all []custody.LegacyDomain
	args := integrations.Args{}
	for page := 0; page < 50; page++ {
		res, err := s.exec.ExecuteAs(ctx, m, legacyOp, args, cred)
		if err != nil {
			return nil, err
		}
		var rows []struct {
			Name      string  `json:"name"`
			ExpiresAt *string `json:"expires_at"`
		}
		if err := json.Unmarshal(res.JSON, &rows); err != nil {
			return nil, errors.New("the service's answer has another shape")
		}
		for _, r := range rows {
			d := custody.LegacyDomain{Name: r.Name}
			if r.ExpiresAt != nil {
				d.ExpiresAt = *r.ExpiresAt
			}
			all = append(all, d)
		}
		if res.Next == nil {
			return all, nil
		}
		args = integrations.Args{res.Next.Arg: res.Next.Value}
	}
	return nil, errManyDomains
}

// legacyConnection learns what the operation's address needs: a token of before says nothing
// of the account that it belongs to.
func (s *Sidecar) legacyConnection(ctx context.Context, m *integrations.Manifest, cred integrations.Credential) (map[string]string, error) {
	learnt := make(map[string]string)
	for _, cn := range m.Connect {
		res, err := s.exec.ExecuteAs(ctx, m, cn.Op, nil, cred)
		if err != nil {
			return nil, err
		}
		values, err := connectValues(cn, res.JSON)
		if err != nil || len(values) == 0 {
			return nil, errors.New("the service does not tell the token's account")
		}
		if len(values) > 1 {
			return nil, errors.New("the token reaches several accounts, and an op of before cannot say which")
		}
		learnt[cn.Name] = values[0]
	}
	return learnt, nil
}

// connectValues reads the values of what a connection can learn.
func connectValues(cn *integrations.Connect, picked []byte) ([]string, error) {
	dec := json.NewDecoder(bytes.NewReader(picked))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	rows, isList := v.([]any)
	if !isList {
		rows = []any{v}
	}
	var all []string
	for _, row := range rows {
		for _, name := range strings.Split(cn.Value, ".") {
			object, _ := row.(map[string]any)
			row = object[name]
		}
		switch x := row.(type) {
		case string:
			all = append(all, x)
		case json.Number:
			all = append(all, x.String())
		}
	}
	return all, nil
}
