package custody

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/integrations"
)

// A Digest binds a consent to exactly what was consented to. It stands in JSON as
// base64url of its 32 bytes.
type Digest [sha256.Size]byte

// String returns base64url without padding.
func (d Digest) String() string { return base64.RawURLEncoding.EncodeToString(d[:]) }

// MarshalText writes base64url without padding.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads base64url without padding of exactly 32 bytes.
func (d *Digest) UnmarshalText(text []byte) error {
	var b Bytes
	if err := b.UnmarshalText(text); err != nil {
		return err
	}
	if len(b) != len(d) {
		return fmt.Errorf("a digest has 32 bytes, not %d", len(b))
	}
	copy(d[:], b)
	return nil
}

func digest(label string, data []byte) Digest {
	h := sha256.New()
	h.Write([]byte("connect/v1 " + label))
	h.Write(data)
	return Digest(h.Sum(nil))
}

// laterKeys are the keys of an operation that change nothing of what runs.
var laterKeys = []string{"title", "about", "destructive", "idempotent", "labels", "deprecated", "status"}

// OpDigest is the digest of an operation's text: everything of the manifest that decides
// what it does, what flows back and what a person reads before it runs. Titles,
// descriptions and the later keys are left out; any other change asks for new consent.
func OpDigest(m *integrations.Manifest, op string) (Digest, error) {
	return opDigest(m.Raw(), m.ID, op)
}

func opDigest(manifest []byte, id, op string) (Digest, error) {
	var file struct {
		Manifest, ID, Name, Host, Headers, Error, Limits any
		Auth                                             struct{ Authorization any }
		Ops                                              map[string]json.RawMessage
	}
	// As float64: the loader keeps numbers within 2^53, and JCS writes them as ECMAScript does.
	if err := json.Unmarshal(manifest, &file); err != nil {
		return Digest{}, err
	}
	var spec, preview map[string]any
	if json.Unmarshal(file.Ops[op], &spec) != nil || spec == nil {
		return Digest{}, fmt.Errorf("%w: %s has no %q", ErrNoOp, id, op)
	}
	text := map[string]any{
		"manifest": file.Manifest, "id": file.ID, "name": file.Name, "host": file.Host, "headers": file.Headers,
		"authorization": file.Auth.Authorization, "error": file.Error, "limits": file.Limits,
		"op": op, "spec": stripOp(spec),
	}
	if p, ok := spec["preview"].(map[string]any); ok {
		name, _ := p["op"].(string)
		if json.Unmarshal(file.Ops[name], &preview) != nil || preview == nil {
			return Digest{}, fmt.Errorf("%w: %s has no %q", ErrNoOp, id, name)
		}
		text["preview"] = stripOp(preview)
	}
	for k, v := range text {
		if v == nil {
			delete(text, k)
		}
	}
	data, err := jcs(text)
	if err != nil {
		return Digest{}, err
	}
	return digest("op", data), nil
}

// stripOp removes what is only said to people, never a name that the author chose.
func stripOp(op map[string]any) map[string]any {
	out := without(op, laterKeys...)
	if args, ok := op["args"].(map[string]any); ok {
		out["args"] = stripArgs(args)
	}
	pick, _ := op["pick"].(map[string]any)
	if fields, ok := pick["fields"].([]any); ok {
		kept := make([]any, len(fields))
		for i, f := range fields {
			kept[i] = f
			if obj, ok := f.(map[string]any); ok {
				kept[i] = without(obj, "about")
			}
		}
		p := without(pick)
		p["fields"] = kept
		out["pick"] = p
	}
	return out
}

func stripArgs(args map[string]any) map[string]any {
	out := make(map[string]any, len(args))
	for name, a := range args {
		out[name] = a
		if spec, ok := a.(map[string]any); ok {
			out[name] = stripArg(spec)
		}
	}
	return out
}

func stripArg(spec map[string]any) map[string]any {
	out := without(spec, "about")
	if of, ok := spec["of"].(map[string]any); ok {
		item := stripArg(of) // what a list holds is an arg too
		if obj, ok := of["object"].(map[string]any); ok {
			item["object"] = stripArgs(obj)
		}
		out["of"] = item
	}
	return out
}

func without(m map[string]any, keys ...string) map[string]any {
	out := maps.Clone(m)
	for _, k := range keys {
		delete(out, k)
	}
	return out
}

// ArgsDigest is the digest of a call's args after defaults and connection values, every
// scalar as text in its type's one form.
func ArgsDigest(c *integrations.Call) (Digest, error) {
	data, err := jcs(c.Args())
	if err != nil {
		return Digest{}, fmt.Errorf("%w: the args have no canonical form", ErrMalformed)
	}
	return digest("args", data), nil
}

// SayDigest is the digest of the sentence that a person reads.
func SayDigest(c *integrations.Call) Digest { return digest("say", []byte(c.Sentence().Text)) }

// PreviewDigest is the digest of what a preview picked, numbers as their own digits in texts.
func PreviewDigest(r *integrations.Result) (Digest, error) {
	dec := json.NewDecoder(bytes.NewReader(r.JSON))
	dec.UseNumber()
	var v any
	// A lone surrogate, which Decode would mend, and a field that stands twice have no one form.
	if !jsontext.Value(r.JSON).IsValid() || dec.Decode(&v) != nil {
		return Digest{}, fmt.Errorf("%w: the preview has no canonical form", ErrMalformed)
	}
	data, err := jcs(numbersAsText(v))
	if err != nil {
		return Digest{}, err
	}
	return digest("preview", data), nil
}

func numbersAsText(v any) any {
	switch v := v.(type) {
	case json.Number:
		return v.String()
	case []any:
		for i := range v {
			v[i] = numbersAsText(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = numbersAsText(v[k])
		}
	}
	return v
}

// OpTexts remember the digests of operations' texts: each is made of a good part of its
// manifest, and a manifest does not change. The zero value works, and is safe for use by
// several goroutines.
type OpTexts struct{ all sync.Map }

type textKey struct {
	manifest *integrations.Manifest
	op       string
}

// Digest returns OpDigest of an operation.
func (t *OpTexts) Digest(m *integrations.Manifest, op string) (Digest, error) {
	k := textKey{m, op}
	if d, ok := t.all.Load(k); ok {
		return d.(Digest), nil
	}
	d, err := OpDigest(m, op)
	if err == nil {
		t.all.Store(k, d)
	}
	return d, err
}

// Allows is [Grant.Allows] with the digests that are remembered.
func (t *OpTexts) Allows(g *Grant, call *integrations.Call) error { return g.allows(call, t.Digest) }
