package integrations_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/integrations"
)

// A problem is one way in which a manifest and its provider disagree.
type problem struct{ Op, At, Why string }

func (p problem) String() string { return p.Op + " " + p.At + ": " + p.Why }

// prove holds every operation of a manifest against what the provider publishes: that
// method and path exist, that all that may be sent is known there and of its type, that
// all that is required is sent, and that each picked field stands in the answer and ends
// at a value.
func prove(m *integrations.Manifest, t *truth) []problem {
	p := &prover{m: m, t: t, errors: map[string]bool{}}
	for _, p.op = range m.Ops {
		p.proveOp()
	}
	p.proveMessages()
	return p.problems
}

type prover struct {
	m  *integrations.Manifest
	t  *truth
	op *integrations.Op

	item     *integrations.Arg // the list that "each" goes through
	errors   map[string]bool   // paths of error.message that some error has
	problems []problem
}

func (p *prover) problem(at, format string, args ...any) {
	p.problems = append(p.problems, problem{p.m.ID + "." + p.op.Name, at, fmt.Sprintf(format, args...)})
}

func (p *prover) proveOp() {
	if (p.t.schema != nil) != p.op.IsGraphQL() {
		p.problem("path", "the provider publishes its API in another form")
		return
	}
	if p.op.IsGraphQL() {
		p.proveGraphQL()
	} else {
		p.proveREST()
	}
}

// proveMessages reports a path of error.message that no described error has. A provider
// that describes none proves nothing.
func (p *prover) proveMessages() {
	if p.m.Error == nil || len(p.errors) == 0 {
		return
	}
	for _, path := range p.m.Error.Message {
		if !p.errors[path] {
			p.problems = append(p.problems, problem{p.m.ID, "error/message", path + ": no error of the provider has it"})
		}
	}
}

// arg returns the arg behind a placeholder.
func (p *prover) arg(ref string) *integrations.Arg {
	if ref == "item" && p.item != nil && p.item.Of != nil {
		return p.item.Of.Arg
	}
	if name, ok := strings.CutPrefix(ref, "item."); ok && p.item != nil && p.item.Of != nil {
		return p.item.Of.Object.Get(name)
	}
	return p.op.Args.Get(ref)
}

// always says whether a template is sent whatever the caller leaves out: an object or
// list is dropped when it has placeholders and none of them is present.
func (p *prover) always(v any) bool {
	has, sent := p.present(v)
	return !has || sent
}

func (p *prover) present(v any) (has, sent bool) {
	add := func(w any) {
		h, s := p.present(w)
		has, sent = has || h, sent || s
	}
	switch v := v.(type) {
	case string:
		for _, ref := range refs(v) {
			has = true
			if a := p.arg(ref); a != nil && !a.Optional {
				sent = true
			}
		}
	case map[string]any:
		if list, ok := v["each"].(string); ok && len(v) == 2 {
			return p.present(list)
		}
		for _, w := range v {
			add(w)
		}
	case []any:
		for _, w := range v {
			add(w)
		}
	}
	return has, sent
}

// stays returns which of the problems that stay p is, -1 where it is none.
func (t *truth) stays(p problem) int {
	return slices.IndexFunc(t.Stays, func(s stay) bool { return regexp.MustCompile(s.Problem).MatchString(p.String()) })
}

func TestProof(t *testing.T) {
	ops, fields := 0, 0
	for _, m := range registry(t) {
		t.Run(m.ID, func(t *testing.T) {
			tr, err := loadTruth(m.ID, filepath.Join(providersDir, m.ID))
			if err != nil {
				t.Fatalf("%v\nmake it with -providers, see %s/README.md", err, providersDir)
			}
			used := make([]bool, len(tr.Stays))
			for _, pr := range prove(m, tr) {
				i := tr.stays(pr)
				if i < 0 {
					t.Error(pr)
					continue
				}
				used[i] = true
				t.Logf("%v; stays: %s", pr, tr.Stays[i].Reason)
			}
			for i, s := range tr.Stays {
				if !used[i] {
					t.Errorf("proof.json lets a problem stay that is no longer found: %s", s.Problem)
				}
			}
			for _, op := range m.Ops {
				ops++
				fields += len(op.Pick.Fields)
				if f, ok := tr.fact(op); ok {
					t.Logf("%s.%s: by %s alone", m.ID, op.Name, f.Source)
					continue
				}
				method, path := tr.source(op)
				t.Logf("%s.%s: %s %s, %d args, %d fields", m.ID, op.Name, method, path, len(op.Args), len(op.Pick.Fields))
			}
		})
	}
	t.Logf("%d operations with %d picked fields", ops, fields)
}

// TestProofCatches breaks manifests that are proved, each in one way that the loader
// cannot know of, and looks whether the proof finds it.
func TestProofCatches(t *testing.T) {
	good := map[string]*integrations.Manifest{}
	truths := map[string]*truth{}
	for _, m := range registry(t) {
		tr, err := loadTruth(m.ID, filepath.Join(providersDir, m.ID))
		if err != nil {
			t.Fatal(err)
		}
		good[m.ID], truths[m.ID] = m, tr
	}
	for _, tt := range []struct {
		name, service, old, new string
		want                    string // part of a problem
	}{
		{"unknown path", "github", `"path": "/user/repos"`, `"path": "/user/repositories"`, "the provider has no GET /user/repositories"},
		{"unknown method", "github", `"method": "PATCH"`, `"method": "PUT"`, "the provider has no PUT"},
		{"undated path", "hubspot", `/crm/objects/2026-09/companies"`, `/crm/objects/2025-09/companies"`, "the provider has no GET /crm/objects/2025-09/companies"},
		{"path arg of another type", "github", `"issue": { "type": "integer", "min": 1, "about": "the issue's number" }`, `"issue": { "about": "the issue's number" }`, "path/issue: issue (string): the provider takes integer"},
		{"unknown query parameter", "github", `"since": "{since}", "per_page"`, `"after": "{since}", "per_page"`, "query/after: the provider knows no such parameter"},
		{"required query parameter left out", "github", `"q": { "min": 1,`, `"q": { "optional": true, "min": 1,`, "query/q: the provider requires it"},
		{"unknown enum value", "github", `"values": ["open", "closed", "all"]`, `"values": ["open", "closed", "all", "merged"]`, `the provider does not take "merged"`},
		{"any text for an enum", "github", `"direction": { "type": "enum", "values": ["asc", "desc"], "optional": true }`, `"direction": { "optional": true }`, "the provider takes one of asc, desc"},
		{"list in another style", "github", `"labels": { "type": "list", "style": "comma"`, `"labels": { "type": "list", "style": "repeat"`, "query/labels: labels (list): the provider takes string"},
		{"page size over the provider's", "dnsimple", `"max": 100, "default": 30`, `"max": 500, "default": 30`, "up to 500 may be given, the provider takes 100"},
		{"unknown body field", "stripe", `"reason": "{reason}" }`, `"cause": "{reason}" }`, "body/cause: the provider knows no such field"},
		{"required body field left out", "github", `"body": { "min": 1, "max": 20000`, `"body": { "optional": true, "min": 1, "max": 20000`, "body/body: the provider requires it"},
		{"required body field renamed", "hubspot", `"properties": {
          "dealname"`, `"props": {
          "dealname"`, "body/properties: the provider requires it"},
		{"body field of another type", "dnsimple", `"ttl": { "type": "integer", "min": 1, "max": 604800, "optional": true, "about": "seconds; 3600 unless said" }`, `"ttl": { "optional": true }`, "body/ttl: ttl (string): the provider takes number"},
		{"longer than the provider takes", "stripe", `"name": { "min": 1, "max": 256 }`, `"name": { "min": 1, "max": 2560 }`, "up to 2560 characters may be given, the provider takes 256"},
		{"JSON where a form is wanted", "stripe", `"body_form": { "charge"`, `"body_json": { "charge"`, "the provider does not take application/json"},
		{"unknown constant", "github", `"state": "closed"`, `"state": "shut"`, `the provider takes one of open, closed, not "shut"`},
		{"misspelt pick", "github", `"stargazers_count"`, `"stargazer_count"`, `the provider's answer has no "stargazer_count"; near it: stargazers_count`},
		{"misspelt root", "github", `"root": "workflow_runs"`, `"root": "runs"`, "pick/root: runs: the provider's answer has no"},
		{"pick ends at an object", "github", `"assignees.login"`, `"assignees"`, "the provider's answer has an object there"},
		{"pick into an id", "stripe", `"fields": ["id", "status", "customer", "currency"`, `"fields": ["id", "status", "customer.name", "currency"`, "leaves open what stands at \"name\""},
		{"pick of an answer without body", "dnsimple", `"pick": { "nothing": "DNSimple answers 204 without a body" }`, `"pick": { "fields": ["id"] }`, "the provider answers with no JSON body"},
		{"time in another form", "github", `{ "path": "pushed_at", "time": "rfc3339" }`, `{ "path": "pushed_at", "time": "epoch_s" }`, "a value of type string there"},
		{"number of pages elsewhere", "dnsimple", `"pages": "pagination.total_pages"`, `"pages": "pagination.pages"`, "next/pages: pagination.pages"},
		{"cursor elsewhere", "stripe", `"path": "next_page"`, `"path": "next"`, "next/path: next"},
		{"message elsewhere", "stripe", `"message": "error.message"`, `"message": "error.text"`, "error/message"},
		{"scope of another object", "hubspot", `"scopes": ["crm.objects.deals.write"]`, `"scopes": ["crm.objects.contacts.write"]`, "scopes: the provider wants crm.objects.deals.write"},
		{"field that no page names", "hubspot", `"companyCurrency"`, `"currency"`, "the provider's pages name only"},
		{"GraphQL: unknown field", "linear", `title priorityLabel state`, `title priorityName state`, `Cannot query field "priorityName"`},
		{"GraphQL: unknown input field", "linear", `"teamId": "{team}"`, `"team": "{team}"`, "IssueCreateInput has no such field"},
		{"GraphQL: required input field left out", "linear", `"teamId": "{team}"`, `"stateId": "{team}"`, "variables/input/teamId: the provider requires it"},
		{"GraphQL: variable of another type", "linear", `{ "type": "integer", "min": 1, "max": 250, "default": 100 }`, `{ "default": "100" }`, "string does not fit Int"},
		{"GraphQL: pick that is not asked for", "linear", `"team.key", "dueDate", "url"`, `"team.key", "dueDate", "branchName"`, `the document does not ask for "branchName"`},
		{"GraphQL: pick ends at an object", "linear", `"fields": ["identifier", "title", "state.name", "url"]`, `"fields": ["identifier", "title", "state", "url"]`, "an object there"},
		{"GraphQL: more asked for than is taken", "linear", `viewer { id name organization`, `viewer { id name email organization`, "it asks for data.viewer.email, which nothing takes"},
		{"GraphQL: list without a size", "linear", `{ teams(first: $first`, `{ teams(last: $first`, "data.teams: a list says its size"},
		{"GraphQL: key where no text goes", "linear", `"idempotency": { "body": "variables.input.id" }`, `"idempotency": { "body": "variables.input.key" }`, `IssueCreateInput has no field "key"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr, raw := truths[tt.service], string(good[tt.service].Raw())
			if !strings.Contains(raw, tt.old) {
				t.Fatalf("%s.json no longer holds %s", tt.service, tt.old)
			}
			m, err := integrations.Parse([]byte(strings.Replace(raw, tt.old, tt.new, 1)))
			if err != nil {
				t.Fatalf("the broken manifest must load, so that only the proof is left to catch it:\n%v", err)
			}
			var found []string
			for _, p := range prove(m, tr) {
				if tr.stays(p) < 0 {
					found = append(found, p.String())
				}
			}
			if got := strings.Join(found, "\n"); !strings.Contains(got, tt.want) {
				t.Errorf("%s → %s\ngot:  %s\nwant: %s", tt.old, tt.new, got, tt.want)
			}
		})
	}
}
