package event_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/google/go-cmp/cmp"

	"github.com/elevenmessenger/connect/functions/internal/event"
	"github.com/elevenmessenger/connect/functions/internal/event/eventtest"
)

var update = flag.Bool("update", false, "write golden files")

// The adapter is what the runtime takes.
var _ lambda.Handler = event.Handler{}

// marker stands for whatever must not come out again.
const marker = "s3cr3t-marker"

// seen is what a handler gets to see of a request.
type seen struct {
	Method, Path, RawPath, Query, Host, Body string
	Header                                   http.Header
	Length                                   int64
}

func look(r *http.Request) seen {
	body, _ := io.ReadAll(r.Body)
	return seen{r.Method, r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.Host, string(body), r.Header.Clone(), r.ContentLength}
}

// send passes an event to a handler and returns what its gateway would send.
func send(t *testing.T, h http.HandlerFunc, kind string, payload []byte) *eventtest.Response {
	t.Helper()
	out, err := event.Handler{HTTP: h}.Invoke(context.Background(), payload)
	if err != nil {
		t.Fatalf("%s: the adapter returned an error: %v", kind, err)
	}
	resp, err := eventtest.Parse(kind, out)
	if err != nil {
		t.Fatalf("%s: %v\n%s", kind, err, out)
	}
	return resp
}

// request returns what a handler sees of an event.
func request(t *testing.T, kind string, payload []byte) seen {
	t.Helper()
	var got *seen
	send(t, func(_ http.ResponseWriter, r *http.Request) {
		s := look(r)
		got = &s
	}, kind, payload)
	if got == nil {
		t.Fatalf("%s: the handler was not called for\n%s", kind, payload)
	}
	return *got
}

// hand makes an event of a kind with single fields changed.
func hand(t *testing.T, kind string, r eventtest.Request, change func(m map[string]any)) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(eventtest.Event(kind, r), &m); err != nil {
		t.Fatal(err)
	}
	change(m)
	out, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func get(target string) eventtest.Request { return eventtest.Request{Method: "GET", Target: target} }

// routes are what clients send to each route.
var routes = map[string]eventtest.Request{
	"healthz":          get("/healthz"),
	"registry":         {Method: "GET", Target: "/registry", Header: http.Header{"Accept-Encoding": {"gzip, deflate, br"}, "If-None-Match": {`"a,b", W/"c"`}}},
	"registry-head":    {Method: "HEAD", Target: "/registry"},
	"registry-options": {Method: "OPTIONS", Target: "/registry", Header: http.Header{"Origin": {"https://chat.example"}, "Access-Control-Request-Method": {"GET"}}},
	"registry-id":      get("/registry/github"),
	"config":           {Method: "GET", Target: "/api/oauth/config?service=github", Header: http.Header{"Origin": {"https://chat.example"}}},
	"authorize": get("/oauth/github/authorize?access=write&key=BC0rN9C4nVsbIJ3EYcyoTOS-JeqdEPM0A1tMfGdDrAG_ZFmLRWmXi5OMDx4ZFmGfqS1lc8kVzZ9E2xA3HHqcuyI" +
		"&return_to=https%3A%2F%2Fchat.example"),
	"authorize-post": {Method: "POST", Target: "/oauth/github/authorize", Body: []byte("access=read&agree=https%3A%2F%2Fchat.example&token=abc"),
		Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Cookie": {"__Host-consent=abc; __Host-flow-x=y"}, "Origin": {"https://broker.example"}, "Sec-Fetch-Site": {"same-origin"}}},
	"callback": {Method: "GET", Target: "/oauth/github/callback?code=a%2Bb%2Fc%3D&iss=https%3A%2F%2Fgithub.com&state=AAAAAAAAAAAAAAAAAAAAAA",
		Header: http.Header{"Cookie": {"__Host-consent=abc; __Host-flow-AAAAAAAAAAAAAAAAAAAAAA=f1.k.v"}, "Sec-Fetch-Dest": {"document"}}},
	"refresh": {Method: "POST", Target: "/api/refresh", Body: []byte(`{"service":"github","refresh":"rt1.k.AAAA","key":"é\"\\"}`),
		Header: http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer a.b.c"}}},
	"revoke": {Method: "POST", Target: "/api/revoke", Body: []byte(`{"service":"github","secret":"x"}`),
		Header: http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer a.b.c"}}},
}

// TestGolden: for every kind and route the event is the file's, and the handler sees one
// request, whichever gateway it came through.
func TestGolden(t *testing.T) {
	files := 0
	for name, r := range routes {
		path, query, _ := strings.Cut(r.Target, "?")
		want := seen{Method: r.Method, Path: path, Query: query, Body: string(r.Body), Header: r.Header.Clone(), Length: int64(len(r.Body))}
		if want.Header == nil {
			want.Header = make(http.Header)
		}
		for _, kind := range eventtest.Kinds {
			file := filepath.Join("testdata", "events", kind, name+".json")
			text := eventtest.Event(kind, r)
			if *update {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v; go test -update writes it", err)
			}
			if d := cmp.Diff(string(golden), string(text)); d != "" {
				t.Errorf("%s is stale (-file +made):\n%s", file, d)
			}
			files++
			got := request(t, kind, golden)
			for _, h := range []string{"X-Forwarded-For", "X-Forwarded-Proto"} {
				got.Header.Del(h)
			}
			want.Host = eventtest.Domain
			if kind == "url-2.0" {
				want.Host = "u7hxample.lambda-url.eu-central-1.on.aws"
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: the handler sees another request (-sent +seen):\n%s", file, d)
			}
		}
	}
	if have, _ := filepath.Glob("testdata/events/*/*.json"); len(have) != files {
		t.Errorf("%d golden files, %d looked at", len(have), files)
	}
}

// TestRequirements holds the eleven of the design, each by its number.
func TestRequirements(t *testing.T) {
	t.Run("req_1_four_kinds_else_400", func(t *testing.T) {
		for _, kind := range eventtest.Kinds {
			if got := request(t, kind, eventtest.Event(kind, get("/registry"))); got.Path != "/registry" {
				t.Errorf("%s: path %q", kind, got.Path)
			}
		}
		foreign := map[string]string{
			"empty": ``, "null": `null`, "list": `[]`, "number": `1`, "object": `{}`, "not JSON": `{"` + marker, "trailing": `{"version":"2.0"} ` + marker,
			"SQS":            `{"Records":[{"messageId":"` + marker + `","body":"x","eventSource":"aws:sqs"}]}`,
			"S3":             `{"Records":[{"s3":{"object":{"key":"` + marker + `"}},"eventSource":"aws:s3"}]}`,
			"schedule":       `{"version":"0","source":"aws.events","detail":{"x":"` + marker + `"}}`,
			"websocket":      `{"requestContext":{"connectionId":"` + marker + `","routeKey":"$connect","stage":"prod","domainName":"x"},"isBase64Encoded":false}`,
			"authorizer":     `{"type":"TOKEN","authorizationToken":"` + marker + `","methodArn":"x"}`,
			"a version more": `{"version":"3.0","rawPath":"/registry","requestContext":{"http":{"method":"GET"}}}`,
			"2.0, no http":   `{"version":"2.0","rawPath":"/` + marker + `","requestContext":{"stage":"$default"}}`,
			"two kinds":      `{"version":"2.0","rawPath":"/a","httpMethod":"GET","path":"/b","requestContext":{"http":{"method":"GET"},"elb":{"targetGroupArn":"x"}}}`,
			"2.0 and ALB":    `{"version":"2.0","rawPath":"/a","requestContext":{"http":{"method":"GET"},"elb":{"targetGroupArn":"x"}}}`,
			"1.0 and ALB":    `{"version":"1.0","path":"/a","httpMethod":"GET","requestContext":{"stage":"x","elb":{"targetGroupArn":"x"}}}`,
			"types":          `{"version":"2.0","rawPath":7,"requestContext":{"http":{"method":"GET"}}}`,
			"header types":   `{"version":"2.0","rawPath":"/","headers":{"a":["` + marker + `"]},"requestContext":{"http":{"method":"GET"}}}`,
			"method":         `{"version":"2.0","rawPath":"/","requestContext":{"http":{"method":"GET /` + marker + `"}}}`,
			"no method":      `{"version":"2.0","rawPath":"/","requestContext":{"http":{"method":""}}}`,
		}
		for name, payload := range foreign {
			var log bytes.Buffer
			h := event.Handler{HTTP: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Errorf("%s: the handler was called", name) }),
				Logger: slog.New(slog.NewJSONHandler(&log, nil))}
			out, err := h.Invoke(t.Context(), []byte(payload))
			if err != nil {
				t.Errorf("%s: error %v", name, err)
			}
			r, err := eventtest.Parse("http-2.0", out)
			if err != nil || r.Status != 400 || string(r.Body) != "{\"error\":\"malformed\"}\n" || r.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: %s (%v)", name, out, err)
			}
			if strings.Contains(string(out)+log.String(), marker) {
				t.Errorf("%s: the answer or the log holds some of the input: %s %s", name, out, &log)
			}
		}
	})

	t.Run("req_2_path_as_it_stands", func(t *testing.T) {
		// What a gateway hands over is the path, whether it still has percent signs or not.
		for _, p := range []string{"/a%2fb", "/a?b=c", "/a#b", "/a b", "/100%", "/%", "/a;b", "//a", "/a/../b", "/ü", "", "a", "/a\x00", "http://x/y", "/a%3Fadmin=1"} {
			for _, kind := range eventtest.Kinds {
				field := "path"
				if strings.HasSuffix(kind, "2.0") {
					field = "rawPath"
				}
				got := request(t, kind, hand(t, kind, get("/x?real=1"), func(m map[string]any) { m[field] = p }))
				if got.Path != p || got.RawPath != "" || got.Query != "real=1" {
					t.Errorf("%s, %q: got path %q, raw %q, query %q", kind, p, got.Path, got.RawPath, got.Query)
				}
			}
		}
		// The query is the gateway's to the byte, where it has one, and means the same elsewhere.
		raw := "state=a%2Bb&code=x%20y&code=z+w&e&f=&%67=%"
		for _, kind := range []string{"http-2.0", "url-2.0"} {
			if got := request(t, kind, eventtest.Event(kind, get("/x?"+raw))); got.Query != raw {
				t.Errorf("%s: query %q", kind, got.Query)
			}
		}
		valid := "a=1%262&a=%3D&b=x%2By+z&c=%25&d=%C3%BC&%26=%3D"
		want, _ := http.NewRequest("GET", "http://x/?"+valid, nil)
		for _, kind := range []string{"http-2.0", "url-2.0", "http-1.0", "rest", "alb"} {
			got := request(t, kind, eventtest.Event(kind, get("/x?"+valid)))
			have, _ := http.NewRequest("GET", "http://x/?"+got.Query, nil)
			if d := cmp.Diff(want.URL.Query(), have.URL.Query()); d != "" {
				t.Errorf("%s: the query means something else: %s", kind, d)
			}
		}
	})

	t.Run("req_3_stage_whole_segment", func(t *testing.T) {
		for _, c := range []struct{ stage, raw, want string }{
			{"$default", "/prod/registry", "/prod/registry"},
			{"prod", "/prod/registry", "/registry"},
			{"prod", "/prod", "/"},
			{"prod", "/production", "/production"},
			{"prod", "/production/registry", "/production/registry"},
			{"prod", "/Prod/registry", "/Prod/registry"},
			{"prod", "/registry/prod", "/registry/prod"},
			{"prod", "/prod/prod/x", "/prod/x"},
			{"prod", "/prod//x", "//x"},
			{"", "/registry", "/registry"},
		} {
			for _, kind := range []string{"http-2.0", "http-1.0"} {
				if c.stage == "" && kind == "http-1.0" {
					continue // no stage, no payload 1.0
				}
				got := request(t, kind, hand(t, kind, get("/x"), func(m map[string]any) {
					m["requestContext"].(map[string]any)["stage"] = c.stage
					m["rawPath"], m["path"] = c.raw, c.raw
				}))
				if got.Path != c.want {
					t.Errorf("%s, stage %q, path %q: got %q, want %q", kind, c.stage, c.raw, got.Path, c.want)
				}
			}
		}
		// A REST API's path never holds the stage: a route of the same name stays whole.
		if got := request(t, "rest", eventtest.Event("rest", eventtest.Request{Method: "GET", Target: "/registry/github", Stage: "registry"})); got.Path != "/registry/github" {
			t.Errorf("rest: %q", got.Path)
		}
	})

	t.Run("req_4_headers", func(t *testing.T) {
		r := eventtest.Request{Method: "GET", Target: "/x", Header: http.Header{
			"Cookie": {"__Host-a=1; b=2", "c=3"}, "X-Comma": {"a, b"}, "User-Agent": {"Mozilla/5.0 (X11; Linux), like"}, "X-Twice": {"1", "2"},
			"If-Modified-Since": {"Tue, 01 Dec 2026 12:00:00 GMT"}, "Content-Length": {"999"},
		}}
		for _, kind := range eventtest.Kinds {
			got := request(t, kind, eventtest.Event(kind, r))
			want := map[string][]string{
				"Cookie": {"__Host-a=1; b=2; c=3"}, "X-Comma": {"a, b"}, "User-Agent": {"Mozilla/5.0 (X11; Linux), like"},
				"If-Modified-Since": {"Tue, 01 Dec 2026 12:00:00 GMT"}, "Host": nil, "Content-Length": nil,
			}
			switch kind {
			case "http-2.0", "url-2.0":
				want["X-Twice"] = []string{"1,2"} // joined by the gateway; one value, never split
			case "alb-single":
				want["X-Twice"], want["Cookie"] = []string{"2"}, []string{"c=3"} // the rest is lost before it gets here
			default:
				want["X-Twice"] = []string{"1", "2"}
			}
			for k, v := range want {
				if !slices.Equal(got.Header[k], v) {
					t.Errorf("%s: %s is %q, want %q", kind, k, got.Header[k], v)
				}
			}
			if got.Length != 0 {
				t.Errorf("%s: length %d", kind, got.Length)
			}
			host := eventtest.Domain
			if kind == "url-2.0" {
				host = "u7hxample.lambda-url.eu-central-1.on.aws"
			}
			if got.Host != host {
				t.Errorf("%s: host %q", kind, got.Host)
			}
		}
		// Host is the gateway's word, not the caller's.
		for _, kind := range []string{"http-2.0", "http-1.0", "rest"} {
			got := request(t, kind, hand(t, kind, get("/x"), func(m map[string]any) {
				m["headers"] = map[string]string{"Host": "evil.example", "x-forwarded-host": "evil.example"}
				m["multiValueHeaders"] = map[string][]string{"Host": {"evil.example"}}
			}))
			if got.Host != eventtest.Domain || got.Header.Get("Host") != "" {
				t.Errorf("%s: host %q, header %q", kind, got.Host, got.Header["Host"])
			}
		}
	})

	t.Run("req_5_body", func(t *testing.T) {
		for _, kind := range eventtest.Kinds {
			body := []byte{0xff, 0, 'a', '\n', 0xc3, 0xbc}
			r := eventtest.Request{Method: "POST", Target: "/x", Body: body, Header: http.Header{"Content-Type": {"application/octet-stream"}}}
			if got := request(t, kind, eventtest.Event(kind, r)); got.Body != string(body) || got.Length != int64(len(body)) {
				t.Errorf("%s: body %q, length %d", kind, got.Body, got.Length)
			}
			called := false
			h := func(http.ResponseWriter, *http.Request) { called = true }
			for _, bad := range []string{"!", "YQ", "YQ=", "YR==", "YQ==\x00", "YQ==YQ==", "-_-_"} {
				resp := send(t, h, kind, hand(t, kind, r, func(m map[string]any) { m["body"] = bad }))
				if resp.Status != 400 || called {
					t.Errorf("%s, base64 %q: status %d, handler called: %t", kind, bad, resp.Status, called)
				}
			}
			for n, want := range map[int]int{64 << 10: 200, 64<<10 + 1: 413, 1 << 20: 413} {
				for _, b64 := range []bool{true, false} {
					text := strings.Repeat("a", n)
					if b64 {
						text = base64.StdEncoding.EncodeToString([]byte(text))
					}
					resp := send(t, h, kind, hand(t, kind, r, func(m map[string]any) { m["body"], m["isBase64Encoded"] = text, b64 }))
					if resp.Status != want {
						t.Errorf("%s, %d bytes, base64 %t: status %d, want %d", kind, n, b64, resp.Status, want)
					}
				}
			}
		}
	})

	t.Run("req_6_answer", func(t *testing.T) {
		png := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		io.WriteString(z, `{"a":1}`)
		z.Close()
		set := func(status int, body string, headers ...string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				for i := 0; i < len(headers); i += 2 {
					w.Header().Add(headers[i], headers[i+1])
				}
				if status != 0 {
					w.WriteHeader(status)
				}
				if body != "" {
					io.WriteString(w, body)
				}
			}
		}
		cases := []struct {
			name   string
			method string
			h      http.HandlerFunc
			status int
			body   string
			base64 bool
			header map[string][]string
		}{
			{"nothing", "GET", set(0, ""), 200, "", false, map[string][]string{"Content-Type": {"text/plain; charset=utf-8"}}},
			{"text", "GET", set(0, "hi"), 200, "hi", false, map[string][]string{"Content-Type": {"text/plain; charset=utf-8"}}},
			{"JSON", "GET", set(201, `{"a":"<ü>"}`, "Content-Type", "application/json", "Content-Length", "999"), 201, `{"a":"<ü>"}`, false,
				map[string][]string{"Content-Type": {"application/json"}, "Content-Length": nil}},
			{"sniffed", "GET", set(0, "<!doctype html><p>"), 200, "<!doctype html><p>", false, map[string][]string{"Content-Type": {"text/html; charset=utf-8"}}},
			{"PNG", "GET", set(0, string(png)), 200, string(png), true, map[string][]string{"Content-Type": {"image/png"}}},
			{"gzip", "GET", set(0, zipped.String(), "Content-Encoding", "gzip", "Content-Type", "application/json"), 200, zipped.String(), true,
				map[string][]string{"Content-Encoding": {"gzip"}, "Content-Type": {"application/json"}}},
			{"encoded, no type", "GET", set(0, "abc", "Content-Encoding", "br"), 200, "abc", true, map[string][]string{"Content-Type": {"application/octet-stream"}}},
			{"two cookies", "GET", set(303, "", "Set-Cookie", "a=1; Path=/", "Set-Cookie", "b=2; Expires=Tue, 01 Dec 2026 12:00:00 GMT", "Location", "https://x/"), 303, "", false,
				map[string][]string{"Set-Cookie": {"a=1; Path=/", "b=2; Expires=Tue, 01 Dec 2026 12:00:00 GMT"}, "Location": {"https://x/"}}},
			{"not modified", "GET", set(304, "", "Etag", `"x"`, "Content-Type", "application/json"), 304, "", false, map[string][]string{"Etag": {`"x"`}, "Content-Type": {"application/json"}}},
			{"not modified, with a body", "GET", set(304, "x"), 304, "", false, nil},
			{"no content", "GET", set(204, "x"), 204, "", false, nil},
			{"HEAD", "HEAD", set(0, "hi", "Content-Type", "text/html"), 200, "", false, map[string][]string{"Content-Type": {"text/html"}}},
			{"HEAD, binary", "HEAD", set(0, string(png)), 200, "", false, map[string][]string{"Content-Type": {"image/png"}}},
			{"second WriteHeader", "GET", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-A", "1")
				w.WriteHeader(404)
				w.Header().Set("X-A", "2")
				w.Header().Set("X-B", "1")
				w.WriteHeader(200)
			}, 404, "", false, map[string][]string{"X-A": {"1"}, "X-B": nil}},
			{"header after a write", "GET", func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["X-A"] = []string{"1"}
				io.WriteString(w, "a")
				w.Header()["X-A"][0] = "2"
				w.WriteHeader(500)
				io.WriteString(w, "b")
			}, 200, "ab", false, map[string][]string{"X-A": {"1"}}},
			{"interim", "GET", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(202) }, 202, "", false, nil},
		}
		for _, c := range cases {
			for _, kind := range eventtest.Kinds {
				payload := eventtest.Event(kind, eventtest.Request{Method: c.method, Target: "/x"})
				out, err := event.Handler{HTTP: c.h}.Invoke(t.Context(), payload)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := eventtest.Parse(kind, out)
				if err != nil {
					t.Errorf("%s, %s: %v", c.name, kind, err)
					continue
				}
				if resp.Status != c.status || string(resp.Body) != c.body || strings.Contains(string(out), `"isBase64Encoded":true`) != c.base64 {
					t.Errorf("%s, %s: %s", c.name, kind, out)
				}
				if resp.Header.Get("Content-Type") == "" {
					t.Errorf("%s, %s: no Content-Type", c.name, kind)
				}
				for k, want := range c.header {
					got := slices.Clone(resp.Header[k])
					slices.Sort(got)
					if !slices.Equal(got, want) {
						t.Errorf("%s, %s: %s is %q, want %q", c.name, kind, k, got, want)
					}
				}
			}
		}
		// Seventeen cookies: sixteen would not show a spelling that comes twice.
		many := func(w http.ResponseWriter, _ *http.Request) {
			for i := range 17 {
				w.Header().Add("Set-Cookie", fmt.Sprintf("c%d=1", i))
			}
		}
		for _, kind := range eventtest.Kinds {
			if resp := send(t, many, kind, eventtest.Event(kind, get("/x"))); len(resp.Header["Set-Cookie"]) != 17 {
				t.Errorf("%s: %d cookies of 17", kind, len(resp.Header["Set-Cookie"]))
			}
		}
	})

	t.Run("req_7_panic", func(t *testing.T) {
		type secretError struct{ error }
		for name, h := range map[string]http.HandlerFunc{
			"text":  func(http.ResponseWriter, *http.Request) { panic(marker) },
			"error": func(http.ResponseWriter, *http.Request) { panic(secretError{fmt.Errorf("x %s", marker)}) },
			"half an answer": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Set-Cookie", marker)
				io.WriteString(w, marker)
				panic(fmt.Errorf("%s", marker))
			},
			"runtime": func(_ http.ResponseWriter, r *http.Request) { _ = []string{marker}[len(r.Method)] },
			"nil":     func(http.ResponseWriter, *http.Request) { panic(nil) },
			"abort":   func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, marker); panic(http.ErrAbortHandler) },
		} {
			for _, kind := range eventtest.Kinds {
				var log bytes.Buffer
				out, err := event.Handler{HTTP: h, Logger: slog.New(slog.NewJSONHandler(&log, nil))}.Invoke(t.Context(), eventtest.Event(kind, get("/x")))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := eventtest.Parse(kind, out)
				if err != nil || resp.Status != 500 || string(resp.Body) != "{\"error\":\"internal\"}\n" || resp.Header.Get("Cache-Control") != "no-store" {
					t.Errorf("%s, %s: %s (%v)", name, kind, out, err)
				}
				if strings.Contains(string(out)+log.String(), marker) {
					t.Errorf("%s, %s: the value got out: %s %s", name, kind, out, &log)
				}
				if name == "abort" {
					if log.Len() > 0 {
						t.Errorf("abort: logged %s", &log)
					}
				} else if !strings.Contains(log.String(), `"type":"`) || !strings.Contains(log.String(), "event_test.TestRequirements") {
					t.Errorf("%s, %s: the log names no type and function: %s", name, kind, &log)
				}
			}
		}
		// Without a logger nothing panics either.
		if resp := send(t, func(http.ResponseWriter, *http.Request) { panic(marker) }, "http-2.0", eventtest.Event("http-2.0", get("/x"))); resp.Status != 500 {
			t.Error(resp.Status)
		}
	})

	t.Run("req_8_context", func(t *testing.T) {
		for _, kind := range eventtest.Kinds {
			deadline := time.Now().Add(time.Hour)
			ctx, cancel := context.WithDeadline(context.WithValue(t.Context(), ctxKey{}, "kept"), deadline)
			r := eventtest.Event(kind, get("/x"))
			var got event.Info
			h := event.Handler{HTTP: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				got = event.InfoOf(r.Context())
				if d, ok := r.Context().Deadline(); !ok || !d.Equal(deadline) || r.Context().Value(ctxKey{}) != "kept" {
					t.Errorf("%s: deadline %v %t, value %v", kind, d, ok, r.Context().Value(ctxKey{}))
				}
				if r.RemoteAddr != "" {
					t.Errorf("%s: RemoteAddr %q invites a decision", kind, r.RemoteAddr)
				}
			})}
			if _, err := h.Invoke(ctx, r); err != nil {
				t.Fatal(err)
			}
			cancel()
			want := event.Info{RequestID: eventtest.RequestID, Address: eventtest.Address, Stage: "$default", Domain: eventtest.Domain}
			switch kind {
			case "rest":
				want.Stage = "prod"
			case "url-2.0":
				want.Domain = "u7hxample.lambda-url.eu-central-1.on.aws"
			case "alb", "alb-single":
				want = event.Info{} // a load balancer says none of it
			}
			if got != want {
				t.Errorf("%s: got %+v, want %+v", kind, got, want)
			}
		}
		if (event.InfoOf(t.Context()) != event.Info{}) {
			t.Error("a context of another origin holds something")
		}
	})

	t.Run("req_9_nothing_runs_on", func(t *testing.T) { nothingRunsOn(t) })

	t.Run("req_10_deadlines_nest", func(t *testing.T) { deadlinesNest(t) })

	t.Run("req_11_golden_and_fuzz", func(t *testing.T) {
		for _, kind := range eventtest.Kinds {
			files, err := filepath.Glob(filepath.Join("testdata", "events", kind, "*.json"))
			if err != nil || len(files) != len(routes) {
				t.Errorf("%s: %d golden events for %d routes (%v)", kind, len(files), len(routes), err)
			}
		}
		if n := len(seeds(t)); n < len(eventtest.Kinds)*len(routes) {
			t.Errorf("FuzzEvent begins with %d seeds", n)
		}
	})
}

type ctxKey struct{}

// TestReports holds the cases that users of other adapters reported.
func TestReports(t *testing.T) {
	t.Run("case_123", func(t *testing.T) { // a form comes base64-encoded
		for _, kind := range eventtest.Kinds {
			r := eventtest.Request{Method: "POST", Target: "/x", Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, Body: []byte("token=abc")}
			payload := eventtest.Event(kind, r)
			if !bytes.Contains(payload, []byte("dG9rZW49YWJj")) {
				t.Fatalf("%s: the event is not the report's: %s", kind, payload)
			}
			token := ""
			send(t, func(_ http.ResponseWriter, r *http.Request) { token = r.PostFormValue("token") }, kind, payload)
			if token != "abc" {
				t.Errorf("%s: token is %q", kind, token)
			}
			resp := send(t, func(http.ResponseWriter, *http.Request) { t.Error("called") }, kind, hand(t, kind, r, func(m map[string]any) { m["body"] = "dG9rZW49YWJ" }))
			if resp.Status != 400 {
				t.Errorf("%s: bad base64 answers %d", kind, resp.Status)
			}
		}
	})
	t.Run("case_125", func(t *testing.T) { // cookies come in a list, not in a header
		for _, headers := range []map[string]string{{}, {"cookie": "__Host-a=1; b=2"}} {
			payload := hand(t, "http-2.0", get("/x"), func(m map[string]any) {
				m["cookies"], m["headers"] = []string{"__Host-a=1", "b=2"}, headers
			})
			var got []string
			send(t, func(_ http.ResponseWriter, r *http.Request) {
				for _, c := range r.Cookies() {
					got = append(got, c.String())
				}
			}, "http-2.0", payload)
			if !slices.Equal(got, []string{"__Host-a=1", "b=2"}) {
				t.Errorf("cookies %q", got)
			}
		}
	})
	t.Run("case_127", func(t *testing.T) { // decoded or not, joined, in lower case
		payload := hand(t, "url-2.0", get("/x"), func(m map[string]any) {
			m["rawPath"], m["headers"] = "/oauth/git%68ub/authorize", map[string]string{"x-a": "1,2"}
			m["requestContext"].(map[string]any)["http"].(map[string]any)["path"] = "/oauth/github/authorize"
		})
		got := request(t, "url-2.0", payload)
		if got.Path != "/oauth/git%68ub/authorize" || !slices.Equal(got.Header["X-A"], []string{"1,2"}) {
			t.Errorf("got %q %q", got.Path, got.Header)
		}
		// One view: the broker has no such path, and no service of that name.
		if s := brokerStatus(t, "url-2.0", payload); s != 404 {
			t.Errorf("the broker answers %d", s)
		}
	})
	t.Run("case_129", func(t *testing.T) { nothingRunsOn(t) }) // what runs after the answer goes on 12 s later
}

// running counts goroutines that are not a connection at rest or the test's own.
func running() []string {
	buf := make([]byte, 1<<20)
	var list []string
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "testing.tRunner") || strings.Contains(g, "testing.(*M).Run") {
			continue
		}
		if strings.Contains(g, "connect/broker") || strings.Contains(g, "connect/functions") || strings.Contains(g, "connect/custody") {
			list = append(list, g)
		}
	}
	return list
}

func seeds(t testing.TB) [][]byte {
	files, err := filepath.Glob("testdata/events/*/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no seeds: %v", err)
	}
	var list [][]byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	return append(list, []byte(`{}`), []byte(`null`), []byte(``), []byte(`{"httpMethod":"GET","requestContext":{"elb":{}}}`))
}

// FuzzEvent: whatever comes, there is no error, and the answer is one that a gateway takes;
// a handler is called only with a request that holds together.
func FuzzEvent(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	h := event.Handler{HTTP: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || int64(len(body)) != r.ContentLength || len(body) > 64<<10 {
			panic("the body does not hold together")
		}
		if r.URL.RawPath != "" || r.Header.Get("Host") != "" || r.Header.Get("Content-Length") != "" || len(r.Header["Cookie"]) > 1 || r.Method == "" {
			panic("the request does not hold together")
		}
		w.Header().Set("X-Echo", r.URL.RawQuery)
		w.Write(body)
	})}
	f.Fuzz(func(t *testing.T, payload []byte) {
		out, err := h.Invoke(t.Context(), payload)
		if err != nil {
			t.Fatal(err)
		}
		var a struct {
			StatusCode *int                `json:"statusCode"`
			Headers    map[string]string   `json:"headers"`
			Multi      map[string][]string `json:"multiValueHeaders"`
		}
		if err := json.Unmarshal(out, &a); err != nil || a.StatusCode == nil || a.Headers == nil && a.Multi == nil {
			t.Fatalf("%v: %s", err, out)
		}
		if *a.StatusCode == 500 {
			t.Fatalf("the handler panicked: %s", out)
		}
	})
}

// BenchmarkEvent: beside the same handler called with a request that is there already.
func BenchmarkEvent(b *testing.B) {
	body := bytes.Repeat([]byte("x"), 12<<10)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(body)
	})
	payload := eventtest.Event("http-2.0", routes["registry"])
	b.Run("adapter", func(b *testing.B) {
		for b.Loop() {
			if _, err := (event.Handler{HTTP: h}).Invoke(b.Context(), payload); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("handler", func(b *testing.B) {
		r := httptest.NewRequest("GET", "/registry", nil)
		for b.Loop() {
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
	})
}
