package integrations

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"code.dny.dev/ssrf"
)

// What the cases ask for: an operation with two segments, one with every style of list,
// and one for each way of paging.
const (
	opRepo = `"repo": {"title": "Show", "access": "read", "method": "GET", "path": "/repos/{owner}/{repo}/issues",
		"args": {"owner": {}, "repo": {}}, "pick": {"fields": ["id"]}}`
	opFile = `"file": {"title": "Show", "access": "read", "method": "GET", "path": "/files/{name}/raw",
		"args": {"name": {"type": "path"}}, "pick": {"fields": ["id"]}}`
	opLists = `"lists": {"title": "List", "access": "read", "method": "GET", "path": "/things",
		"args": {"repeat": {"type": "list", "style": "repeat", "optional": true}, "comma": {"type": "list", "style": "comma", "optional": true},
			"brackets": {"type": "list", "style": "brackets", "optional": true}, "indexed": {"type": "list", "style": "indexed", "optional": true},
			"items": {"type": "list", "style": "indexed", "of": {"object": {"id": {"type": "integer"}, "note": {"optional": true}}}, "optional": true}},
		"query": {"repeat": "{repeat}", "comma": "{comma}", "filter": "{brackets}", "indexed": "{indexed}", "items": "{items}"},
		"pick": {"fields": ["id"]}}`
	opLinked = `"linked": {"title": "List", "access": "read", "method": "GET", "path": "/things", "args": {"page": {"optional": true}},
		"query": {"page": "{page}"}, "pick": {"fields": ["id"]}, "next": {"style": "link", "arg": "page"}}`
	opNumber = `"number": {"title": "Show", "access": "read", "method": "GET", "path": "/things/{n}", "args": {"n": {"type": "integer"}},
		"query": {"n": "{n}"}, "pick": {"fields": ["id", "list"]}}`
	opNumberPost = `"number_post": {"title": "Post", "access": "write", "method": "POST", "path": "/things/{n}", "args": {"n": {"type": "integer"}},
		"body_json": {"n": "{n}", "text": "no. {n}"}, "confirm": "Post {n}?", "pick": {"fields": ["id"]}}`
)

// sends runs an operation against a peer that answers {"id": 1} and returns the request;
// nil where it was refused before anything was sent.
func sends(t *testing.T, m *Manifest, op string, args Args) *seenRequest {
	t.Helper()
	p := newPeer(t, answer(200, `{"id": 1}`))
	_, err := p.Execute(background, m, op, args, testSecret)
	if Code(err) == "refused" {
		if n := len(p.requests()); n != 0 {
			t.Fatalf("refused, and yet %d requests were sent", n)
		}
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.one(t)
}

// TestCases runs what others reported of systems like this one ; each is named
// after its row and stands for its kind.
func TestCases(t *testing.T) {
	t.Run("case_139", func(t *testing.T) { // ids put raw into the path; .. survives escaping
		m := service(t, opRepo+","+opFile)
		for _, id := range []string{"..", ".", "", "../..", "a/..", `..\x`, "\x00", "a\nb", "a\u0085"} {
			if r := sends(t, m, "repo", Args{"owner": "o", "repo": id}); r != nil {
				t.Errorf("%q was sent as %s", id, r.URI)
			}
			if r := sends(t, m, "file", Args{"name": id}); r != nil {
				t.Errorf("%q was sent as %s", id, r.URI)
			}
		}
		for _, id := range []string{"a/../b", "a//b", "/a", "a/", "a/./b", "./a", "a/.."} {
			if r := sends(t, m, "file", Args{"name": id}); r != nil {
				t.Errorf("the path %q was sent as %s", id, r.URI)
			}
		}
		for id, want := range map[string]string{"%2e%2e": "%252e%252e", "%2F": "%252F", "...": "...", "..;": "..%3B", "a b": "a%20b", "a?b#c": "a%3Fb%23c"} {
			if r := sends(t, m, "repo", Args{"owner": "o", "repo": id}); r == nil || r.URI != "/repos/o/"+want+"/issues" {
				t.Errorf("%q was sent as %+v, want %s", id, r, want)
			}
		}
		if r := sends(t, m, "file", Args{"name": "a b/%2e%2e/c?d"}); r == nil || r.URI != "/files/a%20b/%252e%252e/c%3Fd/raw" {
			t.Errorf("a path was sent as %+v", r)
		}
	})
	t.Run("case_141", func(t *testing.T) { // args re-aim an authenticated call
		reg, err := Default()
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range []Args{
			{"owner": "..", "repo": "../repos/victim/private"}, {"owner": "octocat", "repo": "../repos/victim/private"},
			{"owner": "octocat/..", "repo": "x"}, {"owner": "..", "repo": ".."}, {"owner": ".", "repo": "user"}, {"owner": "", "repo": "x"},
		} {
			for _, op := range []string{"get_repo", "list_issues"} {
				_, err := reg.Get("github").Bind(op, tc, nil)
				wantCode(t, err, "refused")
			}
		}
	})
	t.Run("case_143", func(t *testing.T) { // an arg becomes the host
		m := service(t, opRepo)
		for _, v := range []string{"@evil.example", "@evil.example:443", "evil.example#", "evil.example?", ":443", "\u2215\u2215evil.example", "https:evil.example"} {
			r := sends(t, m, "repo", Args{"owner": v, "repo": v})
			if r == nil || r.Host != peerHost || r.URI != "/repos/"+strings.ReplaceAll(url.QueryEscape(v), "+", "%20")+"/"+strings.ReplaceAll(url.QueryEscape(v), "+", "%20")+"/issues" {
				t.Errorf("%q: %+v", v, r)
			}
		}
		for _, v := range []string{"@evil.example/", "//evil.example", `\\evil.example`, "https://evil.example/", "\r\nHost: evil.example"} {
			if r := sends(t, m, "repo", Args{"owner": v, "repo": "x"}); r != nil {
				t.Errorf("%q was sent to %s%s", v, r.Host, r.URI)
			}
		}
	})
	t.Run("case_145", func(t *testing.T) { // indexed brackets for objects
		r := sends(t, service(t, opLists), "lists", Args{"items": []any{map[string]any{"id": 1}, map[string]any{"id": "2", "note": "a&b=[c]"}}})
		want := [][2]string{{"items[0][id]", "1"}, {"items[1][id]", "2"}, {"items[1][note]", "a&b=[c]"}}
		wantPairs(t, r.query(), want)
	})
	t.Run("case_147", func(t *testing.T) { // an array joined by accident
		m := service(t, opLists)
		two := []any{"1", "2 & 3"}
		for arg, want := range map[string][][2]string{
			"repeat": {{"repeat", "1"}, {"repeat", "2 & 3"}}, "comma": {{"comma", "1,2 & 3"}},
			"brackets": {{"filter[]", "1"}, {"filter[]", "2 & 3"}}, "indexed": {{"indexed[0]", "1"}, {"indexed[1]", "2 & 3"}},
		} {
			wantPairs(t, sends(t, m, "lists", Args{arg: two}).query(), want)
			if q := sends(t, m, "lists", Args{arg: []any{}}).query(); q != "" {
				t.Errorf("an empty %s list was sent as %q", arg, q)
			}
		}
		if r := sends(t, m, "lists", Args{"comma": []any{"a,b"}}); r != nil {
			t.Errorf("a comma in an item was sent as %q", r.query())
		}
	})
	casesOfPages(t)
	casesOfNumbers(t)
	casesOfSizes(t)
	casesOfAddresses(t)
	casesOfRedirects(t)
}

// wantPairs holds a query or form, names and values in order, against what it should be.
func wantPairs(t *testing.T, encoded string, want [][2]string) {
	t.Helper()
	var got [][2]string
	for part := range strings.SplitSeq(encoded, "&") {
		name, value, _ := strings.Cut(part, "=")
		if part != "" {
			got = append(got, [2]string{must(url.QueryUnescape(name)), must(url.QueryUnescape(value))})
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q holds %q, want %q", encoded, got, want)
	}
}

// nextOf runs opLinked against Link headers and returns what it says of the next page.
func nextOf(t *testing.T, args Args, links ...string) (*NextPage, error) {
	t.Helper()
	var headers []string
	for _, l := range links {
		headers = append(headers, "Link: "+l)
	}
	p := newPeer(t, answer(200, `{"id": 1}`, headers...))
	res, err := p.Execute(background, service(t, opLinked), "linked", args, testSecret)
	if err != nil {
		return nil, err
	}
	p.one(t) // the link itself is never followed
	return res.Next, nil
}

func casesOfPages(t *testing.T) {
	t.Run("case_149", func(t *testing.T) { // a comma inside the next URL
		for link, want := range map[string]string{
			`<https://x/api?page=2&f=a,b>; rel="next"`:                                     "2",
			`<https://x/?page=1,5>; rel="prev", <https://x/?f=a,b;c&page=3>; rel="next"`:   "", // a bare ; makes the query ambiguous
			`<https://x/?f=a,b%3Bc&page=3>; rel="next"`:                                    "3",
			`<https://x/?page=4>; title="a, b; rel=prev"; rel="next"`:                      "4",
			`<https://x/?page=5>; title="q\", <https://x/?page=6>; rel=next\""; rel=next`:  "5",
			`<https://x/?page=7&f=rel="next">; rel="last", </things?page=8,9>; rel="next"`: "8,9",
		} {
			n, err := nextOf(t, nil, link)
			if want == "" {
				wantCode(t, err, "provider")
			} else if err != nil || n == nil || n.Value != want {
				t.Errorf("%s: got %+v, %v; want %s", link, n, err, want)
			}
		}
	})
	t.Run("case_151", func(t *testing.T) { // the first link taken whatever its relation
		for _, tc := range []struct {
			links []string
			args  Args
			want  string
		}{
			{[]string{`<https://x/?page=1>; rel="previous", <https://x/?page=3>; rel="next"`}, Args{"page": "2"}, "3"},
			{[]string{`<https://x/?page=1>; rel="previous"`, `<https://x/?page=3>; rel="next"`}, nil, "3"},
			{[]string{`<https://x/?page=1>; rel="previous"`}, nil, ""},
			{[]string{`<https://x/?page=1>; rel="nextish", <https://x/?page=2>; rel="prev-next", <https://x/?page=9>; rev="next"`}, nil, ""},
			{[]string{`<https://x/?page=3>; rel="last NEXT"`}, nil, "3"},
			{[]string{`<https://x/?page=1>; rel=prev; rel=next`}, nil, ""}, // the first rel counts
			{[]string{`<https://x/?page=2>; rel="next"`}, Args{"page": "2"}, ""},
			{[]string{`<https://x/?page=>; rel="next"`}, nil, ""},
			{nil, nil, ""},
		} {
			n, err := nextOf(t, tc.args, tc.links...)
			if got := fmt.Sprint(n); err != nil || tc.want == "" && n != nil || tc.want != "" && (n == nil || n.Value != tc.want) {
				t.Errorf("%q: got %s, %v; want %q", tc.links, got, err, tc.want)
			}
		}
	})
}

func casesOfNumbers(t *testing.T) {
	big := []string{"1917043659912705296", "9007199254740993", "-9007199254740993", "9223372036854775807", "-9223372036854775808"}
	t.Run("case_153", func(t *testing.T) { // integers beyond 2^53 rounded on the way back
		m := service(t, opGet)
		more := append([]string{"123456789012345678901234567890", "1e400", "-0", "0.1000", "1E+2", "12.00"}, big...)
		for _, n := range more {
			p := newPeer(t, answer(200, `{"id": `+n+`, "list": [`+n+`, `+n+`], "text": "`+n+`"}`))
			res, err := p.Execute(background, m, "get", nil, testSecret)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{`"id":` + n + `,`, `"list":[` + n + `,` + n + `]`, `"text":"` + n + `"`} {
				if !strings.Contains(strings.ReplaceAll(string(res.JSON)+",", "}", ","), want) {
					t.Errorf("%s came back in %s", n, res.JSON)
				}
			}
		}
	})
	t.Run("case_155", func(t *testing.T) { // a read gives an id, the next call takes it
		m := service(t, opNumber+","+opNumberPost)
		for _, n := range big {
			args, err := ParseArgs([]byte(`{"n": ` + n + `}`))
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range []Args{args, {"n": n}} {
				if r := sends(t, m, "number", a); r == nil || r.URI != "/things/"+n+"?n="+n {
					t.Errorf("%s was sent as %+v", n, r)
				}
				if r := sends(t, m, "number_post", a); r == nil || r.Body != `{"n":`+n+`,"text":"no. `+n+`"}` {
					t.Errorf("%s was sent as %+v", n, r)
				}
			}
		}
		for _, n := range []string{`9223372036854775808`, `-9223372036854775809`, `1e3`, `1.0`, `1.5`, `"1e3"`, `"+1"`, `" 1"`, `"0x10"`, `"1_000"`, `true`, `null`, `""`, `[1]`} {
			args, err := ParseArgs([]byte(`{"n": ` + n + `}`))
			if err != nil {
				t.Fatal(err)
			}
			if r := sends(t, m, "number", args); r != nil {
				t.Errorf("%s was sent as %s", n, r.URI)
			}
		}
		for _, f := range []float64{1 << 53, math.Inf(1), math.NaN(), 1.5, 1e300} { // what has lost its digits already
			_, err := m.Bind("number", Args{"n": f}, nil)
			wantCode(t, err, "refused")
		}
	})
}

func casesOfSizes(t *testing.T) {
	m := service(t, opGet+","+opPost)
	tooLarge := func(t *testing.T, h http.HandlerFunc, limit int64) {
		t.Helper()
		p := newPeer(t, h)
		_, err := p.Execute(background, m, "get", nil, testSecret)
		var large *TooLargeError
		if !errors.As(err, &large) || !large.Raw || large.Limit != limit {
			t.Errorf("got %v, want too large at %d", err, limit)
		}
		_, err = p.Execute(background, m, "post", Args{"text": "x"}, testSecret)
		wantCode(t, err, "unknown_outcome") // it was accepted
	}
	t.Run("case_157", func(t *testing.T) { // 2 MB unpack to 2 GB
		zip := func(w http.ResponseWriter, first string, fill byte) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.WriteString(z, first)
			part := []byte(strings.Repeat(string(fill), 1<<20))
			for range 2 << 10 { // ends early: the client has gone
				if _, err := z.Write(part); err != nil {
					return
				}
			}
			z.Close()
		}
		tooLarge(t, func(w http.ResponseWriter, _ *http.Request) { zip(w, `{"x": "`, '0') }, maxDecodedBytes)
		if !testing.Short() {
			tooLarge(t, func(w http.ResponseWriter, _ *http.Request) { zip(w, `{"id": 1`, ' ') }, maxDecodedBytes)
		}
	})
	t.Run("case_159", func(t *testing.T) { // chunked, so that no length says how much comes
		tooLarge(t, func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"x": "`)
			part := []byte(strings.Repeat("a", 1<<20))
			for range 1 << 10 {
				if _, err := w.Write(part); err != nil {
					return
				}
			}
		}, maxRawBytes)
	})
}

func casesOfAddresses(t *testing.T) {
	refused := func(t *testing.T, addrs ...string) {
		t.Helper()
		safe := ssrf.New(ssrf.WithPorts(443)).Safe // what dial asks, for a machine without IPv6
		for _, a := range addrs {
			network := "tcp4"
			if strings.Contains(a, ":") {
				network = "tcp6"
			}
			addr := net.JoinHostPort(a, "443")
			_, err := new(Executor).dial(background, "tcp", addr)
			if errors.Is(err, syscall.EAFNOSUPPORT) {
				err = safe(network, addr, nil)
				if err != nil {
					err = errPrivateAddress
				}
			}
			if !errors.Is(err, errPrivateAddress) {
				t.Errorf("%s: %v", a, err)
			}
		}
	}
	t.Run("case_161", func(t *testing.T) { // addresses that hold another
		refused(t, "2002:a9fe:a9fe::", "64:ff9b::a9fe:a9fe", "fec0::1", "64:ff9b:1::a9fe:a9fe", "2002:7f00:1::", "2001:0:a9fe:a9fe::1",
			"::ffff:169.254.169.254", "::a9fe:a9fe", "::ffff:0:7f00:1", "::1", "::", "fe80::1", "fd00:ec2::254", "fc00::1", "ff02::1", "2001:db8::1", "100::1")
	})
	t.Run("case_163", func(t *testing.T) { // ranges that are not public
		refused(t, "100.64.0.1", "100.127.255.254", "169.254.169.254", "127.0.0.1", "127.255.0.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255",
			"192.168.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255")
		// A name that leads there, looked at after DNS, sends nothing.
		_, err := new(Executor).dial(background, "tcp", "localhost:443")
		if !errors.Is(err, errPrivateAddress) {
			t.Errorf("localhost: %v", err)
		}
		// Another port than 443 is no way either.
		if _, err := new(Executor).dial(background, "tcp", "1.1.1.1:80"); !errors.Is(err, errPrivateAddress) {
			t.Errorf("port 80: %v", err)
		}
	})
}

func casesOfRedirects(t *testing.T) {
	// stays answers a GET with a redirect that must not be followed, and shows that the
	// other host hears nothing at all.
	stays := func(t *testing.T, status int, locations ...string) {
		t.Helper()
		other := newPeer(t, answer(200, `{"id": "stolen"}`), "other.example", "evil.example", "sub."+peerHost, "foo.com", "storage.example")
		for _, to := range locations {
			p := newPeer(t, answer(status, `{"message": "SENTINEL"}`, "Location: "+to))
			for _, host := range []string{"other.example", "evil.example", "sub." + peerHost, "foo.com", "storage.example"} {
				p.ConnectTo[host+":443"] = other.addr
			}
			_, err := p.Execute(background, service(t, opGet), "get", nil, testSecret)
			wantCode(t, err, "provider")
			p.one(t)
			if s := err.Error(); strings.Contains(s, "SENTINEL") || strings.Contains(s, "evil") || strings.Contains(s, "sig") {
				t.Errorf("%s: what the service wrote flowed back: %s", to, s)
			}
		}
		if n := len(other.requests()); n != 0 {
			t.Errorf("the other host heard %d requests", n)
		}
	}
	t.Run("case_067", func(t *testing.T) {
		stays(t, 302, "https://other.example/x", "//other.example/x", "http://"+peerHost+"/x")
	})
	t.Run("case_069", func(t *testing.T) {
		stays(t, 307, "https://evil.example/", "https://"+peerHost+"@evil.example/")
		stays(t, 308, "https://evil.example/", "https://"+peerHost+".evil.example/")
	})
	t.Run("case_071", func(t *testing.T) {
		stays(t, 302, "https://[::1%25."+peerHost+"]/", "https://sub."+peerHost+"/", "https://"+peerHost+":8443/", "https://"+peerHost+"./", "https://[::1%25.foo.com]/", "https://foo.com/")
	})
	t.Run("case_169", func(t *testing.T) { // a signed address elsewhere
		stays(t, 302, "https://storage.example/file?X-Amz-Signature=sig", "https://169.254.169.254/latest?sig=1")
		// Of a write it is not known what came of it only where the status says so.
		for status, code := range map[int]string{302: "provider", 303: "unknown_outcome", 307: "provider"} {
			p := newPeer(t, answer(status, "", "Location: https://storage.example/?sig=1"))
			_, err := p.Execute(background, service(t, opPost), "post", Args{"text": "x"}, testSecret)
			wantCode(t, err, code)
			p.one(t)
		}
	})
}
