package custody

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"

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
	if bytes.IndexByte(text, '\n') >= 0 || bytes.IndexByte(text, '\r') >= 0 { // which the decoder would pass over
		return errors.New("this is not base64url without padding")
	}
	out, err := base64.RawURLEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		return errors.New("this is not base64url without padding")
	}
	*b = out
	return nil
}

// maxDepth is how deep JSON may nest, a message's own braces included.
const maxDepth = 64

// parse reads one JSON value into v, strictly. version is the v that is known, 0 for what
// has none: any other makes an ErrVersion, whatever else stands there. The error says where
// something is wrong, never what stood there.
func parse(data []byte, limit, version int, v any) error {
	if len(data) > limit {
		return fmt.Errorf("%w: %d bytes, at most %d are read", ErrTooBig, len(data), limit)
	}
	if tooDeep(data) {
		return fmt.Errorf("%w: it nests more than %d levels", ErrMalformed, maxDepth)
	}
	reflect.ValueOf(v).Elem().SetZero() // Unmarshal keeps what the JSON does not name
	// Duplicate names, invalid UTF-8 and trailing data are errors by themselves; names must
	// match in case.
	err := json.Unmarshal(data, v, json.RejectUnknownMembers(true), json.WithUnmarshalers(strict))
	if err == nil {
		return nil
	}
	if version != 0 {
		var later struct {
			V *int `json:"v"`
		}
		if json.Unmarshal(data, &later) == nil && later.V != nil && *later.V != version {
			return versionError(*later.V)
		}
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

// tooDeep says whether data opens more than maxDepth objects and lists at once.
func tooDeep(data []byte) bool {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			if depth++; depth > maxDepth {
				return true
			}
		case '}', ']':
			depth--
		case '"':
			for escaped := true; escaped; { // to the quote that ends the text
				n := bytes.IndexByte(data[i+1:], '"')
				if n < 0 {
					return false
				}
				i += n + 1
				text := data[:i]
				escaped = (len(text)-len(bytes.TrimRight(text, `\`)))%2 == 1
			}
		}
	}
	return false
}

// isObject says whether valid JSON is an object.
func isObject(data []byte) bool { return jsontext.Value(data).Kind() == '{' }

// Secrets print as "[secret]" everywhere but here: what this package writes is sealed.
var writeSecret = json.MarshalToFunc(func(enc *jsontext.Encoder, s integrations.Secret) error {
	return enc.WriteToken(jsontext.String(s.Reveal()))
})

// strict reads secrets, and refuses null, which else would stand for any zero value. Only
// what an operation picked may be null.
var strict = json.JoinUnmarshalers(
	json.UnmarshalFromFunc(func(dec *jsontext.Decoder, s *integrations.Secret) error {
		tok, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if tok.Kind() != '"' {
			return errors.New("this is not a text")
		}
		*s = integrations.NewSecret(tok.String())
		return nil
	}),
	json.UnmarshalFromFunc(func(dec *jsontext.Decoder, _ any) error {
		if dec.PeekKind() == 'n' && dec.StackPointer() != "/result" {
			return errors.New("this is null")
		}
		return errors.ErrUnsupported
	}),
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
