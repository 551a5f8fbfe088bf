package integrations_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/elevenmessenger/connect/integrations"
)

// A ban is a path that no pick may let through, with all that is below it.
type ban struct {
	Path   string
	Beyond []string // what may be picked below it all the same
}

// UnmarshalJSON reads a path alone, or an object.
func (b *ban) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &b.Path) == nil {
		return nil
	}
	type plain ban
	return json.Unmarshal(data, (*plain)(b))
}

// covers says whether the ban stands against a picked path.
func (b ban) covers(picked string) bool {
	ours, theirs := strings.Split(b.Path, "."), strings.Split(picked, ".")
	if len(theirs) < len(ours) || slices.Contains(b.Beyond, picked) {
		return false
	}
	for i := range ours {
		if ok, err := path.Match(ours[i], theirs[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

type bans struct {
	General struct {
		Names  []string
		Unless map[string][]string
	}
	Ops map[string][]ban
}

func loadBans(t *testing.T) bans {
	t.Helper()
	var b bans
	if err := readJSON("testdata/must_not_flow_back.json", &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// banned returns why an operation may not pick a path, "" when it may.
func (b bans) banned(op, picked string) string {
	for _, ban := range b.Ops[op] {
		if ban.covers(picked) {
			return ban.Path + " of " + op
		}
	}
	if slices.Contains(b.General.Unless[op], picked) {
		return ""
	}
	for _, seg := range strings.Split(picked, ".") {
		for _, name := range b.General.Names {
			if ok, _ := path.Match(name, seg); ok {
				return name
			}
		}
	}
	return ""
}

// TestNothingPicksWhatMustStay: no pick names what must not flow back, and every exception
// is in use.
func TestNothingPicksWhatMustStay(t *testing.T) {
	b := loadBans(t)
	known := map[string]*integrations.Op{}
	fields := 0
	for _, m := range registry(t) {
		for _, op := range m.Ops {
			name := m.ID + "." + op.Name
			known[name] = op
			for _, f := range op.Pick.Fields {
				fields++
				if why := b.banned(name, f.Path); why != "" {
					t.Errorf("%s picks %s, and %s must not flow back", name, f.Path, why)
				}
			}
		}
	}
	for op := range b.Ops {
		if known[op] == nil {
			t.Errorf("must_not_flow_back.json names %s, which is no operation", op)
		}
	}
	for op, paths := range b.General.Unless {
		for _, p := range paths {
			if known[op] == nil || !slices.ContainsFunc(known[op].Pick.Fields, func(f integrations.Field) bool { return f.Path == p }) {
				t.Errorf("must_not_flow_back.json lets %s pick %s, which it does not", op, p)
			}
		}
	}
	t.Logf("%d picked fields against %d operations' lists and %d general names", fields, len(b.Ops), len(b.General.Names))
}

// TestBansCatch shows that the list finds what it is for.
func TestBansCatch(t *testing.T) {
	b := loadBans(t)
	for _, tt := range []struct {
		op, picked string
		want       bool
	}{
		{"github.list_repos", "temp_clone_token", true},
		{"github.list_repos", "clone_url", true},
		{"github.list_repos", "html_url", false},
		{"github.list_issues", "user.login", false},
		{"github.list_issues", "user.name", true},
		{"github.list_pulls", "head.repo.full_name", true},
		{"github.list_pulls", "head.ref", false},
		{"stripe.list_customers", "email", false},
		{"stripe.list_customers", "shipping.address.city", true},
		{"stripe.whoami", "email", true},
		{"stripe.whoami", "company.tax_id_provided", true},
		{"stripe.list_payments", "client_secret", true},
		{"stripe.get_invoice", "hosted_invoice_url", true},
		{"hubspot.list_contacts", "properties.phone", true},
		{"hubspot.get_contact", "properties.phone", false},
		{"linear.issue", "assignee.email", true},
		{"dnsimple.list_contacts", "address1", true},
		{"dnsimple.list_domains", "account.email", true}, // not on its list, but on the general one
	} {
		if got := b.banned(tt.op, tt.picked); (got != "") != tt.want {
			t.Errorf("%s picks %s: got %q, want a ban: %v", tt.op, tt.picked, got, tt.want)
		}
	}
}

// TestSentences holds what a person confirms against the rules of the README.
func TestSentences(t *testing.T) {
	for _, m := range registry(t) {
		for _, op := range m.Ops {
			if op.Access != integrations.Write {
				continue
			}
			n := utf8.RuneCountInString(op.Confirm)
			if n > 90 || strings.Count(op.Confirm, "?") != 1 || !strings.HasSuffix(op.Confirm, "?") || strings.Contains(strings.ToLower(op.Confirm), "are you sure") {
				t.Errorf("%s.%s: %q (%d characters): at most 90, one question mark at the end, no “Are you sure”", m.ID, op.Name, op.Confirm, n)
			}
			if op.Has(integrations.Money) && op.Preview == nil {
				t.Errorf("%s.%s moves money and shows no preview", m.ID, op.Name)
			}
		}
	}
}

var (
	secretName = regexp.MustCompile(`(?i)^(temp_clone_token|.*secret.*|.*password.*|.*token|fingerprint|last4)$`)
	eMail      = regexp.MustCompile(`[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+`)
)

// markers returns what stands in a response and must not get through: values under a name
// of a secret, and e-mail addresses.
func markers(v any, name string, found map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			markers(e, k, found)
		}
	case []any:
		for _, e := range v {
			markers(e, name, found)
		}
	case string:
		if secretName.MatchString(name) && v != "" {
			found[v] = name
		}
		for _, m := range eMail.FindAllString(v, -1) {
			found[m] = name
		}
	}
}

// TestNoMarkerFlowsBack: the responses hold fake credentials and e-mail addresses on
// purpose. None of them is in a result, but where a member asked for it.
func TestNoMarkerFlowsBack(t *testing.T) {
	b := loadBans(t)
	found := map[string]string{} // marker → the name under which it stands
	for _, m := range registry(t) {
		for _, r := range loadResponses(t, m.ID) {
			var body any
			if err := json.Unmarshal(r.Body, &body); err != nil {
				t.Fatalf("%s: %v", r.file, err)
			}
			markers(body, "", found)
		}
	}
	for _, want := range []string{"FAKETEMPCLONETOKEN0000000000", "pi_fake0000_secret_fake0000", "octocat@example.com", "example-account@example.com"} {
		if found[want] == "" {
			t.Errorf("the responses no longer hold %s, so that this test proves less", want)
		}
	}
	files, err := filepath.Glob("testdata/golden/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden results (%v)", err)
	}
	results := 0
	for _, f := range files {
		if strings.HasSuffix(f, ".errors.json") {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var g struct{ Result any }
		if err := json.Unmarshal(data, &g); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		results++
		op := strings.Join(strings.SplitN(filepath.Base(f), ".", 3)[:2], ".")
		for _, leaf := range leaves(g.Result, "") {
			for marker, name := range found {
				if strings.Contains(fmt.Sprint(leaf.value), marker) && !slices.Contains(b.General.Unless[op], leaf.path) {
					t.Errorf("%s: %s (%s) flows back in %s", f, marker, name, leaf.path)
				}
			}
		}
	}
	t.Logf("%d markers, none in %d results", len(found), results)
}

type leaf struct {
	path  string
	value any
}

// leaves returns the scalars of a JSON value with their paths, arrays gone through.
func leaves(v any, path string) []leaf {
	var all []leaf
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			all = append(all, leaves(e, strings.TrimPrefix(path+"."+k, "."))...)
		}
	case []any:
		for _, e := range v {
			all = append(all, leaves(e, path)...)
		}
	default:
		all = append(all, leaf{path, v})
	}
	return all
}
