package integrations

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
)

// The kinds of credential.
const (
	PAT    = "pat"   // pasted: sent by the manifest's scheme
	OAuth2 = "oauth" // from an OAuth flow: always sent as Bearer
)

// A Credential is what an operation runs with.
type Credential struct {
	Kind   string            // PAT or OAuth2; "" is a legacy credential and uses the manifest's scheme
	Secret Secret            // the access token or pasted token
	Fields map[string]string // what was pasted beside the token (Auth.PastedFields)
	Scopes []string          // what the token was granted; nil when that is not known
	// Connection is what the connection has learnt (Manifest.Connect), by name.
	Connection map[string]string
}

// Format keeps every verb from printing what was pasted; the rest is not told either.
func (c Credential) Format(f fmt.State, _ rune) { fmt.Fprint(f, "credential "+redacted) }

// MarshalJSON keeps encoders from writing it.
func (c Credential) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// LogValue keeps log/slog from writing it.
func (c Credential) LogValue() slog.Value { return slog.StringValue(redacted) }

// A Secret is a token in memory. However it is printed, logged or marshalled, it reads
// "[secret]". The zero value is no secret.
type Secret struct{ s string }

// NewSecret keeps s from being printed.
func NewSecret(s string) Secret { return Secret{s} }

const redacted = "[secret]"

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return s.s }

// IsZero says whether there is no secret.
func (s Secret) IsZero() bool { return s.s == "" }

func (s Secret) String() string { return redacted }

// GoString keeps %#v from printing the secret.
func (s Secret) GoString() string { return redacted }

// Format keeps every verb from printing the secret.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// MarshalJSON and MarshalText keep encoders from writing the secret.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText keeps encoders from writing the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue keeps log/slog from writing the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// maxToken bounds a token; those that are in use are below 5,000 bytes.
const maxToken = 8192

// header returns the header that carries the credential.
func (c Credential) header(m *Manifest) (name, value string, err error) {
	token := c.Secret.s
	refuse := func(why, hint string) (string, string, error) {
		return "", "", &RefusedError{Reason: why, Hint: hint}
	}
	if token == "" {
		return refuse("there is no token", "")
	}
	if len(token) > maxToken {
		return refuse(fmt.Sprintf("the token is longer than %d characters", maxToken), "paste the token alone")
	}
	for i := range len(token) {
		if token[i] <= 0x20 || token[i] >= 0x7f {
			return refuse("the token holds a space, a line break or a character that is not ASCII", "paste the token alone")
		}
	}
	switch c.Kind {
	case OAuth2:
		return "Authorization", "Bearer " + token, nil
	case PAT, "":
	default:
		return refuse("the credential is of a kind that is not known here", "")
	}
	switch a := m.Auth.Authorization; a.Scheme {
	case "bearer":
		return "Authorization", "Bearer " + token, nil
	case "none":
		return "Authorization", token, nil
	case "prefix":
		return "Authorization", a.Prefix + " " + token, nil
	case "header":
		return a.Header, token, nil
	case "basic":
		var parts [2]string
		for i, s := range a.Basic {
			t, _ := parseTemplate(s)
			for _, p := range t {
				v := p.lit
				switch {
				case p.ref == "token":
					v = token
				case p.ref != "":
					v = c.Fields[p.ref]
					if v == "" || strings.ContainsAny(v, ":\r\n\x00") {
						return refuse(fmt.Sprintf("%q is needed beside the token, without a colon", p.ref), "")
					}
				}
				parts[i] += v
			}
		}
		return "Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(parts[0]+":"+parts[1])), nil
	}
	return refuse(m.Name+" takes no pasted token", m.Auth.Authorization.Why)
}

// Judge says what to think of a pasted token before anything is sent: "good", "warn",
// "refuse", or "" where no prefix fits, with the words for the member.
func (a *Auth) Judge(token string) (verdict, say string) {
	for _, p := range a.Pasted {
		if strings.HasPrefix(token, p.Prefix) {
			return p.Verdict, p.Say
		}
	}
	return "", ""
}
