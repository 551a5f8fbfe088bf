package integrations

import (
	"strings"
	"testing"
)

// TestPagesAtTheEdge holds what a result says of the next page where the answer is odd.
func TestPagesAtTheEdge(t *testing.T) {
	const (
		cursor    = `"args": {"after": {"optional": true}}, "query": {"after": "{after}"}, "pick": {"root": "items", "fields": ["id"]}, "next": {"style": "cursor", "arg": "after", "path": "paging.next"}`
		cursorInt = `"args": {"after": {"type": "integer", "min": 1, "optional": true}}, "query": {"after": "{after}"}, "pick": {"root": "items", "fields": ["id"]}, "next": {"style": "cursor", "arg": "after", "path": "next"}`
		last      = `"args": {"after": {"type": "id", "optional": true}}, "query": {"starting_after": "{after}"}, "pick": {"root": "items", "fields": ["name"]}, "next": {"style": "last", "arg": "after", "field": "id", "more": "more"}`
		sized     = `"args": {"page": {"type": "integer", "min": 1, "max": 9, "optional": true}}, "query": {"page": "{page}"}, "pick": {"root": "items", "fields": ["id"]}, "next": {"style": "page", "arg": "page", "size": 2}`
		link      = `"args": {"page": {"type": "integer", "min": 1, "optional": true}}, "query": {"p": "{page}", "per_page": "50"}, "pick": {"root": "items", "fields": ["id"]}, "next": {"style": "link", "arg": "page"}`
	)
	for _, tc := range []struct {
		name, spec string
		args       Args
		body       string
		link       string
		want       string // the JSON of next; "" is the list's end, otherwise the error's part
		bad        bool
	}{
		{"cursor before the items", cursor, Args{"after": "abc"}, `{"paging": {"x": {"next": 1}, "next": "a&b=\u00e9"}, "items": []}`, "", `{"after":"a\u0026b=é"}`, false},
		{"cursor, too long", cursor, nil, `{"items": [], "paging": {"next": "` + strings.Repeat("a", 4097) + `"}}`, "", "too long", true},
		{"cursor of 4,096 characters", cursor, nil, `{"items": [], "paging": {"next": "` + strings.Repeat("a", 4096) + `"}}`, "", `{"after":"` + strings.Repeat("a", 4096) + `"}`, false},
		{"cursor for a whole number that stays", cursorInt, Args{"after": 12}, `{"items": [], "next": "0012"}`, "", "", false},
		{"cursor out of range", cursorInt, nil, `{"items": [], "next": 0}`, "", "no value of after", true},
		{"cursor of another type", cursorInt, nil, `{"items": [], "next": "../x"}`, "", "no value of after", true},
		{"last, a number", last, nil, `{"more": true, "items": [{"id": 1}, {"id": 18446744073709551617}]}`, "", `{"after":"18446744073709551617"}`, false},
		{"last, it does not advance", last, Args{"after": "b"}, `{"items": [{"id": "b"}], "more": true}`, "", "", false},
		{"last, absent in the last item", last, nil, `{"items": [{"id": "a"}, {"name": "b"}], "more": true}`, "", "does not hold", true},
		{"last, absent in another item", last, nil, `{"items": [{"name": "a"}, {"id": "b"}], "more": true}`, "", "does not hold", true},
		{"last, null in the last item", last, nil, `{"items": [{"id": "a"}, {"id": null}], "more": true}`, "", "does not hold", true},
		{"last, no id", last, nil, `{"items": [{"id": "../a"}], "more": true}`, "", "no value of after", true},
		{"page by size, more than full", sized, Args{"page": "4"}, `{"items": [{"id": 1}, {"id": 2}, {}]}`, "", `{"page":5}`, false},
		{"page by size, past the arg's limit", sized, Args{"page": 9}, `{"items": [{"id": 1}, {"id": 2}]}`, "", "no value of page", true},
		{"link, no value of the arg", link, nil, `{"items": []}`, `</x?p=-7>; rel=next`, "no value of page", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := service(t, `"list": {"title": "List", "access": "read", "method": "GET", "path": "/things", `+tc.spec+`}`)
			var headers []string
			if tc.link != "" {
				headers = append(headers, "Link: "+tc.link)
			}
			p := newPeer(t, answer(200, tc.body, headers...))
			res, err := p.Execute(background, m, "list", tc.args, testSecret)
			if tc.bad {
				wantCode(t, err, "provider")
				if !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if res.Next != nil {
				got = string(must(res.Next.MarshalJSON()))
			}
			if got != tc.want {
				t.Errorf("next is %q, want %q", got, tc.want)
			}
			if res.Next != nil { // it is an arg of the same operation
				args, err := ParseArgs([]byte(got))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := m.Bind("list", args, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestNextWithToken shows that a cursor that holds the token is withheld.
func TestNextWithToken(t *testing.T) {
	m := service(t, `"list": {"title": "List", "access": "read", "method": "GET", "path": "/things", "args": {"after": {"optional": true}}, "query": {"after": "{after}"},
		"pick": {"root": "items", "fields": ["id"]}, "next": {"style": "cursor", "arg": "after", "path": "next"}}`)
	p := newPeer(t, answer(200, `{"items": [], "next": "x`+testToken+`"}`))
	_, err := p.Execute(background, m, "list", nil, testSecret)
	wantCode(t, err, "provider")
	if strings.Contains(err.Error(), "S3cr3t") {
		t.Errorf("the token is in %v", err)
	}
}

// TestMessageCut shows that a message that is read in part gives no part of the token.
func TestMessageCut(t *testing.T) {
	m := service(t, opGet, `"error": {"message": "message"}`)
	for _, n := range []int{4060, 4080, 4085} {
		p := newPeer(t, answer(400, `{"message": "`+strings.Repeat(" ", n)+testToken+` and more than that"}`))
		_, err := p.Execute(background, m, "get", nil, testSecret)
		wantCode(t, err, "provider")
		if strings.Contains(err.Error(), testToken[:8]) {
			t.Errorf("after %d spaces: %v", n, err)
		}
	}
}
