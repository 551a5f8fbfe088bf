// Package markup renders pages from a small part of html/template's language: define,
// template, if, else, with, range, and paths such as .Title or .Form.Action.
//
// html/template looks methods up by name while it runs, and for that a linker keeps every
// method of a program: a Lambda function would be two megabytes larger. What is rendered here
// is, to the byte, what html/template makes of the same source; a test and a fuzz target hold
// the two together. A source that would need more of it is refused when it is parsed.
package markup

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Data is what a page shows: strings, booleans, CSS, Data and lists of Data.
type Data map[string]any

// CSS is a style sheet of our own. It stands in a style element as it is.
type CSS string

// A Set holds the pages of one source.
type Set struct{ pages map[string][]node }

// A node is literal text, a value, another page, or a branch.
type node struct {
	text string // literal
	call string // the page to render here

	path    []string // of a value, or of what a branch looks at; empty is the dot itself
	value   place    // where a value stands
	branch  string   // if, with or range
	yes, no []node
}

// A place is where in HTML a value stands.
type place int

const (
	nowhere place = iota
	inText
	inAttribute
	inAddress // an attribute that holds an address
	inStyle
)

// Parse reads a source of define blocks.
func Parse(source string) (*Set, error) {
	p := &parser{rest: source}
	s := &Set{pages: make(map[string][]node)}
	for {
		before, action, ok, err := p.next()
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(before) != "" {
			return nil, fmt.Errorf("markup: text outside a page: %.40q", before)
		}
		if !ok {
			return s, s.check()
		}
		name, isDefine := quoted(action, "define ")
		if !isDefine {
			return nil, fmt.Errorf("markup: {{%s}} outside a page", action)
		}
		p.state = state{}
		body, end, err := p.list()
		if err != nil {
			return nil, fmt.Errorf("%w, in the page %q", err, name)
		}
		if end != "end" || s.pages[name] != nil {
			return nil, fmt.Errorf("markup: the page %q does not end, or is there twice", name)
		}
		s.pages[name] = append(body, node{}) // never nil
	}
}

// check finds calls of pages that there are not.
func (s *Set) check() error {
	var walk func(list []node) error
	walk = func(list []node) error {
		for _, n := range list {
			if n.call != "" && s.pages[n.call] == nil {
				return fmt.Errorf("markup: there is no page %q", n.call)
			}
			if err := walk(n.yes); err != nil {
				return err
			}
			if err := walk(n.no); err != nil {
				return err
			}
		}
		return nil
	}
	for _, list := range s.pages {
		if err := walk(list); err != nil {
			return err
		}
	}
	return nil
}

func quoted(action, keyword string) (string, bool) {
	s, ok := strings.CutPrefix(action, keyword)
	if !ok || len(s) < 3 || s[0] != '"' || s[len(s)-1] != '"' || strings.Contains(s[1:len(s)-1], `"`) {
		return "", false
	}
	return s[1 : len(s)-1], true
}

type parser struct {
	rest  string
	state state
}

// next returns the text before the next action, and the action.
func (p *parser) next() (before, action string, ok bool, err error) {
	before, rest, found := strings.Cut(p.rest, "{{")
	if !found {
		p.rest = ""
		return before, "", false, nil
	}
	action, rest, found = strings.Cut(rest, "}}")
	if !found {
		return "", "", false, fmt.Errorf("markup: an action does not end")
	}
	p.rest = rest
	return before, action, true, nil
}

// list reads nodes up to an end or else, which it returns.
func (p *parser) list() (list []node, end string, err error) {
	for {
		before, action, ok, err := p.next()
		if err != nil {
			return nil, "", err
		}
		if before != "" {
			if err := p.state.read(before); err != nil {
				return nil, "", err
			}
			list = append(list, node{text: before})
		}
		switch {
		case !ok:
			return list, "", nil
		case action == "end" || action == "else":
			return list, action, nil
		case strings.HasPrefix(action, "template "):
			name, ok := quoted(action, "template ")
			if !ok || p.state != (state{}) {
				return nil, "", fmt.Errorf("markup: {{%s}} names no page, or stands inside a tag", action)
			}
			list = append(list, node{call: name})
		case strings.HasPrefix(action, "."):
			path, ok := pathOf(action)
			where, err := p.state.place()
			if !ok || err != nil {
				return nil, "", fmt.Errorf("markup: {{%s}} is no path, or stands where a value cannot: %v", action, err)
			}
			list = append(list, node{path: path, value: where})
		default:
			keyword, arg, _ := strings.Cut(action, " ")
			path, ok := pathOf(arg)
			if keyword != "if" && keyword != "with" && keyword != "range" || !ok {
				return nil, "", fmt.Errorf("markup: {{%s}} is nothing known here", action)
			}
			n := node{branch: keyword, path: path}
			// Every way through has to leave the page in one state: text, or one attribute.
			at := p.state
			var stop string
			if n.yes, stop, err = p.list(); err != nil {
				return nil, "", err
			}
			same := p.state == at
			if stop == "else" {
				p.state = at
				if n.no, stop, err = p.list(); err != nil {
					return nil, "", err
				}
				same = same && p.state == at
			}
			if stop != "end" || !same {
				return nil, "", fmt.Errorf("markup: {{%s}} does not end, or changes where the text after it stands", action)
			}
			list = append(list, n)
		}
	}
}

func pathOf(s string) ([]string, bool) {
	if s == "." {
		return nil, true
	}
	rest, ok := strings.CutPrefix(s, ".")
	if !ok {
		return nil, false
	}
	path := strings.Split(rest, ".")
	for _, name := range path {
		if name == "" || strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") != "" {
			return nil, false
		}
	}
	return path, true
}

// A state is where in HTML the end of a text stands.
type state struct {
	tag       string // of the tag that is open: "<" and what follows it, up to its attributes
	attribute string // whose quotes are open
	element   string // style, while it is open
}

// read goes over literal text. It knows as much of HTML as pages of ours have.
func (s *state) read(text string) error {
	for text != "" {
		switch {
		case s.attribute != "":
			_, rest, found := strings.Cut(text, `"`)
			if !found {
				return nil
			}
			s.attribute, text = "", rest
		case s.tag != "":
			i := strings.IndexAny(text, `">`)
			if i < 0 {
				s.tag += text
				return nil
			}
			s.tag += text[:i]
			if text[i] == '>' {
				if name, _, _ := strings.Cut(strings.ToLower(s.tag), " "); name == "<style" || name == "<script" || name == "<textarea" {
					s.element = name[1:]
				}
				s.tag, text = "", text[i+1:]
				continue
			}
			name, ok := strings.CutSuffix(s.tag, "=")
			if j := strings.LastIndexAny(name, " \n\t"); !ok || j < 0 {
				return fmt.Errorf("markup: quotes that belong to no attribute")
			} else {
				s.attribute = strings.ToLower(name[j+1:])
			}
			text = text[i+1:]
		default:
			i := strings.IndexByte(text, '<')
			if i < 0 {
				return nil
			}
			if s.element != "" && !strings.HasPrefix(strings.ToLower(text[i:]), "</"+s.element) {
				text = text[i+1:]
				continue
			}
			s.element, s.tag, text = "", "<", text[i+1:]
		}
	}
	return nil
}

// place says where a value that comes next would stand.
func (s *state) place() (place, error) {
	switch a := s.attribute; {
	case a == "href" || a == "action":
		return inAddress, nil
	case a == "style" || a == "srcset" || a == "src" || a == "srcdoc" || a == "formaction" || strings.HasPrefix(a, "on") || strings.HasPrefix(a, "data-"):
		return nowhere, fmt.Errorf("in the attribute %s", a)
	case a != "":
		return inAttribute, nil
	case s.tag != "":
		return nowhere, fmt.Errorf("in a tag, outside quotes")
	case s.element == "style":
		return inStyle, nil
	case s.element != "":
		return nowhere, fmt.Errorf("in the element %s", s.element)
	}
	return inText, nil
}

// Render returns a page.
func (s *Set) Render(name string, d Data) string {
	var b strings.Builder
	s.render(&b, s.pages[name], d)
	return b.String()
}

func (s *Set) render(b *strings.Builder, list []node, dot any) {
	for _, n := range list {
		switch {
		case n.call != "":
			s.render(b, s.pages[n.call], nil)
		case n.branch != "":
			v := at(dot, n.path)
			switch items, isList := v.([]Data); {
			case n.branch == "range" && isList && len(items) > 0:
				for _, item := range items {
					s.render(b, n.yes, item)
				}
			case n.branch == "range" || !truth(v):
				s.render(b, n.no, dot)
			case n.branch == "with":
				s.render(b, n.yes, v)
			default:
				s.render(b, n.yes, dot)
			}
		case n.value != nowhere:
			b.WriteString(escape(at(dot, n.path), n.value))
		default:
			b.WriteString(n.text)
		}
	}
}

func at(dot any, path []string) any {
	for _, name := range path {
		d, ok := dot.(Data)
		if !ok {
			return nil
		}
		dot = d[name]
	}
	return dot
}

func truth(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case CSS:
		return v != ""
	case bool:
		return v
	case Data:
		return len(v) > 0
	case []Data:
		return len(v) > 0
	}
	return false
}

func escape(v any, where place) string {
	if css, ok := v.(CSS); ok && where == inStyle {
		return string(css)
	}
	s, ok := v.(string)
	switch {
	case !ok, where == inStyle:
		return ""
	case where == inAddress:
		s = address(s)
	}
	return text.Replace(s)
}

// text escapes what could end a text or a quoted attribute.
var text = strings.NewReplacer("\x00", "\uFFFD", `"`, "&#34;", "&", "&amp;", "'", "&#39;", "+", "&#43;", "<", "&lt;", ">", "&gt;")

// address lets through http, https, mailto and what has no scheme, and encodes what no
// address holds.
func address(s string) string {
	if scheme, _, ok := strings.Cut(s, ":"); ok && !strings.Contains(scheme, "/") &&
		!strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") && !strings.EqualFold(scheme, "mailto") {
		return "#ZgotmplZ"
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= utf8.RuneSelf:
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("!#$&*+,-./:;=?@[]_~", c) >= 0:
			b.WriteByte(c)
			continue
		case c == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]):
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02x", c)
	}
	return b.String()
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' }
