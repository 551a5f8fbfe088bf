package integrations

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestAttacksAtOnce breaks many things at once: all are told, in the order of the text.
func TestAttacksAtOnce(t *testing.T) {
	text := attackBase(t)
	for _, p := range [][2]string{
		{`"id": "acme"`, `"id": "Acme"`},
		{`"about": "Sites, items`, `"abuot": "Sites, items`},
		{`"host": "api.acme.example"`, `"host": "API.acme.example:8443"`},
		{`"X-Acme-Version": "2026-05-01"`, `"X-HTTP-Method-Override": "DELETE", "x-acme-version": "1\r\nHost: evil.example"`},
		{`"pat_help": "https://app.acme.example/`, `"pat_help": "https://acme.example.evil.com/`},
		{`"scopes_write": ["items.read", "sites.read", "items.write"]`, `"scopes_write": ["items.write"]`},
		{`{ "prompt": "consent" }`, `{ "State": "x", "prompt": "consent" }`},
		{`"viewer": "whoami"`, `"viewer": "refund"`},
		{`"path": "/v1/charges/{charge}"`, `"path": "/v1/../charges/{charge}"`},
		{`"confirm": "Refund the charge {charge}?"`, `"confirm": "Refund <b>it</b>?", "confirm": ""`},
		{`"target": "item_id",`, ``},
		{`"query": "query($first: Int!)`, `"query": "mutation($first: Int!)`},
		{`"pick": { "root": "hits", "fields": ["id", "title"] }`, `"pick": { "root": "hits", "fields": ["id", "*", "id", "id.x"] }`},
	} {
		if strings.Count(text, p[0]) != 1 {
			t.Fatalf("%q is not in the base once", p[0])
		}
		text = strings.Replace(text, p[0], p[1], 1)
	}
	_, err := Parse([]byte(text))
	var faults Faults
	if !errors.As(err, &faults) {
		t.Fatal("accepted")
	}
	checkFaultsOf(t, faults, []byte(text))
	const golden = "testdata/hostile/many.golden"
	got := faults.Error() + "\n"
	if updating() {
		if err := os.WriteFile(golden, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("faults differ from %s (go test -update rewrites it):\n%s", golden, got)
	}
}

func TestLoadFolder(t *testing.T) {
	base := attackBase(t)
	as := func(id string) *fstest.MapFile {
		s := strings.Replace(base, `"id": "acme"`, `"id": "`+id+`"`, 1)
		s = strings.Replace(s, `, "X-Acme-Version": "2026-05-01"`, "", 1)
		return &fstest.MapFile{Data: []byte(s)}
	}
	bad := &fstest.MapFile{Data: []byte(strings.Replace(base, `"manifest": 1`, `"manifest": 2`, 1))}
	notJSON := &fstest.MapFile{Data: []byte("not JSON")}
	huge := &fstest.MapFile{Data: bytes.Repeat([]byte(" "), maxManifestBytes+10)}
	for _, tt := range []struct {
		name  string
		files fstest.MapFS
		want  []string // file and rule of every fault; none: it loads
		all   int
	}{
		{"one", fstest.MapFS{"acme.json": as("acme")}, nil, 1},
		{"two", fstest.MapFS{"acme.json": as("acme"), "acme-desk.json": as("acme-desk")}, nil, 2},
		{"the schema and other files are not manifests", fstest.MapFS{"acme.json": as("acme"), "schema.json": notJSON, "README.md": notJSON, "old/acme.json": notJSON}, nil, 1},
		{"another name", fstest.MapFS{"acne.json": as("acme")}, []string{"acne.json load.name"}, 0},
		{"another case", fstest.MapFS{"Acme.json": as("acme")}, []string{"Acme.json load.name"}, 0},
		{
			"ids that read alike as tools", fstest.MapFS{"acme-desk.json": as("acme-desk"), "acme_desk.json": as("acme-desk")},
			[]string{"acme_desk.json load.name", "acme_desk.json load.collide"}, 0,
		},
		{
			"operations that read alike as tools", fstest.MapFS{"acme.json": {Data: bytes.Replace(as("acme").Data, []byte(`"item_exists"`), []byte(`"desk_whoami"`), 1)}, "acme-desk.json": as("acme-desk")},
			[]string{"acme.json load.collide"}, 0,
		},
		{"one bad file refuses all", fstest.MapFS{"acme.json": as("acme"), "bad.json": bad}, []string{"bad.json manifest.version"}, 0},
		{
			"all bad files are told", fstest.MapFS{"a.json": notJSON, "acme.json": as("acme"), "b.json": bad, "c.json": as("acme")},
			[]string{"a.json json.syntax", "b.json manifest.version", "c.json load.name", "c.json load.collide"}, 0,
		},
		{"a huge file", fstest.MapFS{"acme.json": as("acme"), "huge.json": huge}, []string{"huge.json json.size"}, 0},
		{"an empty folder", fstest.MapFS{}, []string{" load.empty"}, 0},
		{"only the schema", fstest.MapFS{"schema.json": notJSON}, []string{" load.empty"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reg, err := Load(tt.files)
			if tt.want == nil {
				if err != nil || len(reg.All()) != tt.all {
					t.Fatalf("does not load: %v", err)
				}
				return
			}
			var faults Faults
			if !errors.As(err, &faults) || !errors.Is(err, ErrManifest) || reg != nil {
				t.Fatalf("loaded (%v)", err)
			}
			var got []string
			for _, f := range faults {
				got = append(got, f.File+" "+f.Rule)
				if f.File != "" && !strings.HasPrefix(f.String(), f.File+":") {
					t.Errorf("the file is not named: %s", f)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("faults %q, want %q\n%v", got, tt.want, err)
			}
		})
	}
}

// lockedFS is a folder whose manifests cannot be opened.
type lockedFS struct{ fstest.MapFS }

func (l lockedFS) Open(name string) (fs.File, error) {
	if strings.HasSuffix(name, ".json") {
		return nil, fs.ErrPermission
	}
	return l.MapFS.Open(name)
}

func TestLoadUnreadable(t *testing.T) {
	reg, err := Load(lockedFS{fstest.MapFS{"acme.json": {Data: []byte(attackBase(t))}}})
	if reg != nil || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file that cannot be read: registry %v, error %v", reg, err)
	}
}

func attackBase(t testing.TB) string {
	data, err := os.ReadFile("testdata/hostile/base.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// checkFaultsOf holds what is true of any faults of a manifest.
func checkFaultsOf(t testing.TB, faults Faults, data []byte) {
	t.Helper()
	if len(faults) == 0 {
		t.Error("refused without a fault")
	}
	lines := bytes.Split(data, []byte("\n"))
	for i, f := range faults {
		if _, ok := ruleByID(f.Rule); !ok {
			t.Errorf("a fault has the rule %q, which there is not", f.Rule)
		}
		if f.Line < 1 || f.Column < 1 || f.Line > len(lines) || f.Column > len(lines[f.Line-1])+1 {
			t.Errorf("a fault stands at %d:%d, outside the text", f.Line, f.Column)
		}
		if f.Message == "" || f.Mend == "" {
			t.Errorf("a fault of %s says not what is wrong or not what would be right", f.Rule)
		}
		if strings.ContainsAny(f.String(), "\r\n\x1b\u202e\u200b") {
			t.Errorf("a fault is more than one plain line: %q", f.String())
		}
		if i > 0 && (f.Line < faults[i-1].Line || f.Line == faults[i-1].Line && f.Column < faults[i-1].Column) {
			t.Errorf("faults are not in the order of the text: %v", faults)
		}
	}
}
