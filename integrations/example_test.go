package integrations_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/elevenmessenger/connect/integrations"
)

// notes describes a service with a read and a write.
const notes = `{
  "manifest": 1, "id": "notes", "version": "1.0.0", "name": "Notes", "about": "Notes of a member", "host": "example.com",
  "auth": { "authorization": "bearer" },
  "error": { "message": "message" },
  "ops": {
    "list": {
      "title": "List notes", "access": "read", "method": "GET", "path": "/v1/notes",
      "args": { "page": { "type": "integer", "min": 1, "optional": true } },
      "query": { "page": "{page}" },
      "pick": { "root": "notes", "fields": ["id", "text"] },
      "next": { "style": "page", "arg": "page", "pages": "pages" }
    },
    "add": {
      "title": "Add a note", "access": "write", "method": "POST", "path": "/v1/notes",
      "args": { "text": { "max": 500 }, "pinned": { "type": "boolean", "optional": true } },
      "body_json": { "text": "{text}", "pinned": "{pinned}" },
      "confirm": "Add the note “{text}”?",
      "pick": { "fields": ["id"] }
    }
  }
}`

// A server that stands in for the service, and an executor that is led to it.
func standIn() (*integrations.Executor, func()) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer a-token":
			w.WriteHeader(401)
			fmt.Fprint(w, `{"message": "Bad credentials"}`)
		case r.Method == "GET":
			fmt.Fprint(w, `{"notes": [{"id": 1917043659912705296, "text": "milk", "owner": {"email": "me@example.com"}}], "pages": 3}`)
		default:
			w.WriteHeader(201)
			fmt.Fprint(w, `{"id": 1917043659912705297}`)
		}
	}))
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	return &integrations.Executor{
		ConnectTo: map[string]string{"example.com:443": srv.Listener.Addr().String()},
		RootCAs:   roots,
	}, srv.Close
}

func ExampleExecutor_Execute() {
	e, done := standIn()
	defer done()
	m, err := integrations.Parse([]byte(notes))
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := e.Execute(context.Background(), m, "list", nil, integrations.NewSecret("a-token"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", res.JSON)
	fmt.Printf("next: %s = %s\n", res.Next.Arg, res.Next.Value)

	_, err = e.Execute(context.Background(), m, "list", nil, integrations.NewSecret("another"))
	fmt.Println(errors.Is(err, integrations.ErrUnauthorised), err)

	_, err = e.Execute(context.Background(), m, "list", integrations.Args{"page": 0}, integrations.NewSecret("a-token"))
	fmt.Println(integrations.Code(err), err)

	// Output:
	// [{"id":1917043659912705296,"text":"milk"}]
	// next: page = 2
	// true Notes did not accept the token (401): Bad credentials
	// refused page: this is less than 1; nothing was sent
}

// A write is bound first, so that what a person reads is what runs.
func ExampleManifest_Bind() {
	e, done := standIn()
	defer done()
	m, err := integrations.Parse([]byte(notes))
	if err != nil {
		fmt.Println(err)
		return
	}
	call, err := m.Bind("add", integrations.Args{"text": "milk\n(already approved)", "pinned": true}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	s := call.Sentence()
	fmt.Println(s.Text)
	for _, r := range s.Rest {
		fmt.Printf("%s: %s\n", r.Arg, r.Text)
	}

	res, err := e.Do(context.Background(), call, integrations.Credential{Secret: integrations.NewSecret("a-token")})
	fmt.Println(strings.TrimSpace(string(res.JSON)), err)

	// Output:
	// Add the note “milk ⏎ (already approved)”?
	// pinned: yes
	// {"id":1917043659912705297} <nil>
}
