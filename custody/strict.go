package custody

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/integrations"
)

// Bytes are bytes that stand in JSON as base64url without padding (RFC 4648, section 5):
// exactly one text stands for the same bytes.
type Bytes []byte

// MarshalText writes base64url without padding.
func (b Bytes) MarshalText() ([]byte, error) {
	return base64.RawURLEncoding.AppendEncode(nil, b), nil
}

// UnmarshalText reads base64url without padding; line breaks and loose last bits are refused.
func (b *Bytes) UnmarshalText(text []byte) error {
	if strings.ContainsAny(string(text), "\r\n") { // which the decoder would pass over
		return errors.New("this is not base64url without padding")
	}
	out, err := base64.RawURLEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		return errors.New("this is not base64url without padding")
	}
	*b = out
	return nil
}

// parse reads one JSON value into v, strictly. Its error says where, never what stood there.
func parse(data []byte, limit int, v any) error {
	if len(data) > limit {
		return fmt.Errorf("%w: %d bytes, at most %d are read", ErrTooBig, len(data), limit)
	}
	// Duplicate names, invalid UTF-8 and trailing data are errors by themselves; names must
	// match in case.
	err := json.Unmarshal(data, v, json.RejectUnknownMembers(true), json.WithUnmarshalers(readSecret))
	if err == nil {
		return nil
	}
	var sem *json.SemanticError
	var syn *jsontext.SyntacticError
	switch {
	case errors.As(err, &sem):
		what := "a value is not of its type"
		if errors.Is(sem.Err, json.ErrUnknownName) {
			what = "a field is not known"
		}
		return fmt.Errorf("%w: %s at byte %d", ErrMalformed, what, sem.ByteOffset)
	case errors.As(err, &syn):
		what := "this is not JSON"
		if errors.Is(syn.Err, jsontext.ErrDuplicateName) {
			what = "a field stands twice"
		}
		return fmt.Errorf("%w: %s at byte %d", ErrMalformed, what, syn.ByteOffset)
	}
	return fmt.Errorf("%w: this is not JSON", ErrMalformed)
}

// Secrets print as "[secret]" everywhere but here: what this package writes is sealed.
var (
	writeSecret = json.MarshalToFunc(func(enc *jsontext.Encoder, s integrations.Secret) error {
		return enc.WriteToken(jsontext.String(s.Reveal()))
	})
	readSecret = json.UnmarshalFromFunc(func(dec *jsontext.Decoder, s *integrations.Secret) error {
		tok, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if tok.Kind() != '"' {
			return errors.New("this is not a text")
		}
		*s = integrations.NewSecret(tok.String())
		return nil
	})
)

func marshal(v any) ([]byte, error) {
	return json.Marshal(v, json.Deterministic(true), json.WithMarshalers(writeSecret))
}

// jcs returns a value's canonical JSON (RFC 8785).
func jcs(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	val := jsontext.Value(b)
	if err := val.Canonicalize(); err != nil {
		return nil, err
	}
	return val, nil
}
