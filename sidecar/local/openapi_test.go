package local

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/pb33f/libopenapi"
)

const openapiFile = "../../docs/sidecar-openapi.json"

// An openapi is the part of the description that answers are held against.
type openapi struct {
	Paths map[string]map[string]struct {
		Security  []map[string]any   `json:"security"`
		Responses map[string]apiResp `json:"responses"`
	} `json:"paths"`
	Components struct {
		Responses map[string]apiResp         `json:"responses"`
		Schemas   map[string]json.RawMessage `json:"schemas"`
	} `json:"components"`
}

type apiResp struct {
	Ref     string `json:"$ref"`
	Content map[string]struct {
		Schema struct {
			Ref string `json:"$ref"`
		} `json:"schema"`
	} `json:"content"`
}

var description = sync.OnceValues(func() (*openapi, error) {
	data, err := os.ReadFile(openapiFile)
	if err != nil {
		return nil, err
	}
	// A schema resolves its references in itself.
	doc := new(openapi)
	return doc, json.Unmarshal([]byte(strings.ReplaceAll(string(data), "#/components/schemas/", "#/$defs/")), doc)
})

// described holds an answer against the description of its path, method and status.
func described(method, path string, w *httptest.ResponseRecorder) error {
	doc, err := description()
	if err != nil {
		return err
	}
	if h := w.Header(); h.Get("Cache-Control") != "no-store" || h.Get("Content-Type") != "application/json" || h.Get("Access-Control-Allow-Origin") != "" {
		return fmt.Errorf("its headers are %v", h)
	}
	item, known := doc.Paths[path]
	known = known && code(w.Body.Bytes()) != "not_found"
	if !known { // a path that is not there is answered as everywhere
		return valid(doc, "#/$defs/Error", w.Body.Bytes())
	}
	responses := item[strings.ToLower(method)].Responses
	if responses == nil { // another method: 405 is described at each of the path's
		for _, o := range item {
			responses = o.Responses
		}
	}
	resp, ok := responses[strconv.Itoa(w.Code)]
	if !ok {
		return fmt.Errorf("the status is not described")
	}
	if name, ok := strings.CutPrefix(resp.Ref, "#/components/responses/"); ok {
		resp = doc.Components.Responses[name]
	}
	return valid(doc, resp.Content["application/json"].Schema.Ref, w.Body.Bytes())
}

var resolved sync.Map // :: reference → *jsonschema.Resolved

func valid(doc *openapi, ref string, body []byte) error {
	rs, err := resolve(doc, ref)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return rs.Validate(v)
}

func resolve(doc *openapi, ref string) (*jsonschema.Resolved, error) {
	if ref == "" {
		return nil, fmt.Errorf("no schema is described")
	}
	if rs, ok := resolved.Load(ref); ok {
		return rs.(*jsonschema.Resolved), nil
	}
	text, err := json.Marshal(map[string]any{"$ref": ref, "$defs": doc.Components.Schemas})
	if err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	rs, err := s.Resolve(nil)
	if err == nil {
		resolved.Store(ref, rs)
	}
	return rs, err
}

// TestDescription: docs/sidecar-openapi.json is a valid document, and has the routes of the
// code and no others.
func TestDescription(t *testing.T) {
	data := must(os.ReadFile(openapiFile))
	parsed := must(libopenapi.NewDocument(data))
	model, err := parsed.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	if model.Model.Version != "3.1.0" {
		t.Errorf("it is of OpenAPI %s", model.Model.Version)
	}
	doc := must(description())
	var want, got []string
	for path, item := range doc.Paths {
		for method, o := range item {
			open := len(o.Security) == 1 && len(o.Security[0]) == 0
			want = append(want, fmt.Sprintf("%s %s open=%v", strings.ToUpper(method), path, open))
		}
	}
	for _, rt := range routes() {
		got = append(got, fmt.Sprintf("%s %s open=%v", rt.method, rt.path, rt.open))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) || len(got) == 0 {
		t.Errorf("the code has\n%s\nand %s\n%s", strings.Join(got, "\n"), openapiFile, strings.Join(want, "\n"))
	}
	// A schema that nothing refers to describes nothing.
	for name := range maps.Keys(doc.Components.Schemas) {
		if !strings.Contains(string(data), `"#/components/schemas/`+name+`"`) {
			t.Errorf("the schema %s is not used", name)
		}
	}
}

// TestDescriptionIsHeld: the check of answers refuses what is not described.
func TestDescriptionIsHeld(t *testing.T) {
	answer := func(status int, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.WriteString(body)
		return w
	}
	if err := described("GET", "/healthz", answer(200, `{"ok":true}`)); err != nil {
		t.Error(err)
	}
	for _, w := range []*httptest.ResponseRecorder{answer(200, `{"ok":false}`), answer(200, `{"ok":true,"more":1}`), answer(201, `{"ok":true}`), answer(503, `{"error":"words"}`)} {
		if described("GET", "/healthz", w) == nil {
			t.Errorf("%d %s passes", w.Code, w.Body)
		}
	}
}
