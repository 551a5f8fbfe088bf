package integrations

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"

	"github.com/elevenmessenger/connect/integrations/internal/projection"
)

// An opCheck holds one operation against the rules, and compiles it on the way.
type opCheck struct {
	*reading
	m     *Manifest
	o     *Op
	p     string          // pointer of the operation
	uses  map[string]bool // arg → whether one of its uses is always sent
	items map[string]bool // "list.field" of list args that are sent item by item, "list." of those sent whole
}

func (r *reading) checkOp(m *Manifest, o *Op) {
	c := &opCheck{reading: r, m: m, o: o, p: at("/ops", o.Name), uses: make(map[string]bool), items: make(map[string]bool)}
	o.isGraphQL = o.GraphQL || c.looksGraphQL()
	c.method()
	c.args()
	c.path()
	o.query = c.params("query", o.Query)
	o.form = c.params("body_form", o.BodyForm)
	c.body()
	c.usage()
	c.oneOf()
	c.pick()
	c.next()
	c.fail()
	c.consent()
	c.scopes()
	c.idempotency()
	c.graphQL()
	c.later()
	if len(c.faults) == 0 {
		c.compile()
	}
}

// compile makes what the executor reads answers with. Paths that do not go together, one
// through the end of another, say, are found here.
func (c *opCheck) compile() {
	o := c.o
	if o.Pick.Nothing == "" {
		spec := projection.Spec{Root: o.Pick.Root, Captures: o.captures.compile(o)}
		for _, f := range o.Pick.Fields {
			spec.Fields = append(spec.Fields, f.Path)
		}
		var err error
		if o.projection, err = projection.Compile(spec); err != nil {
			c.fault(c.at("pick"), "pick.prefix", "the fields do not go together")
		}
	}
	var err error
	if o.errors, err = c.m.errorSet(o); err != nil {
		c.fault(c.at("fail"), "fail", "the paths of message and code do not go together")
	}
}

func (c *opCheck) at(segs ...any) string { return at(c.p, segs...) }

func (c *opCheck) method() {
	o := c.o
	get := o.Method == "GET" || o.Method == "HEAD"
	hasBody := o.BodyJSON != nil || o.BodyForm != nil
	switch {
	case !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}, o.Method):
		// enum or required has been reported
	case o.Access == Write && get:
		c.fault(c.at("method"), "op.method", "a write does not use "+o.Method)
	case o.Access == Read && !get && (o.SafePost == "" || o.Method != "POST"):
		c.fault(c.at("method"), "op.method", "a read uses GET, or POST with a reason in safe_post")
	}
	if o.SafePost != "" && (o.Access != Read || o.Method != "POST") {
		c.fault(c.at("safe_post"), "op.safe_post", "only a read that uses POST needs this")
	}
	if o.Unattended != "" && (o.SafePost == "" || o.isGraphQL) {
		c.fault(c.at("unattended"), "op.safe_post", "only a safe POST that is not GraphQL needs this")
	}
	if hasBody && (get || o.Method == "DELETE") {
		key := "body_json"
		if o.BodyJSON == nil {
			key = "body_form"
		}
		c.fault(c.at(key), "op.body", o.Method+" carries no body")
	}
	if o.BodyJSON != nil && o.BodyForm != nil {
		c.fault(c.at("body_form"), "op.body", "body_json and body_form exclude each other")
	}
	if o.Method == "HEAD" && o.Pick != nil && o.Pick.Nothing == "" {
		c.fault(c.at("pick"), "op.method", "HEAD has no body to pick from")
	}
}

func (c *opCheck) args() {
	for _, a := range c.o.Args {
		c.arg(a, c.at("args", a.Name), false)
	}
}

// arg holds one arg against the rules for its type. Inside a list it is simpler.
func (c *opCheck) arg(a *Arg, p string, inner bool) {
	kind := a.Kind()
	if !slices.Contains([]string{"string", "integer", "number", "boolean", "enum", "date", "datetime", "id", "path", "list", "map"}, kind) {
		return // enum has been reported
	}
	if a.Min != nil && a.Min.Text == "" { // its fault has been reported
		a.Min = nil
	}
	if a.Max != nil && a.Max.Text == "" {
		a.Max = nil
	}
	only := func(set bool, key string, kinds ...string) {
		if set && !slices.Contains(kinds, kind) {
			c.fault(at(p, key), "arg.type", fmt.Sprintf("%q makes no sense for the type %s", key, kind))
		}
	}
	only(a.Values != nil, "values", "enum")
	only(a.Words != nil, "words", "enum", "integer")
	only(a.As != "", "as", "date", "datetime")
	only(a.Of != nil, "of", "list")
	only(a.Style != "", "style", "list")
	only(a.MaxItems != 0, "max_items", "list", "map")
	only(a.Min != nil, "min", "string", "id", "path", "integer", "number")
	only(a.Max != nil, "max", "string", "id", "path", "integer", "number")
	only(a.Pattern != "", "pattern", "string", "id", "path")
	only(a.Money != nil, "money", "integer")
	only(a.Default != nil, "default", "string", "id", "path", "integer", "number", "boolean", "enum", "date", "datetime")
	if kind == "enum" {
		if len(a.Values) == 0 {
			c.fault(p, "arg.enum", "an enum lists its values")
		}
		for i, v := range a.Values {
			if v == "" || plainText(v) != "" || slices.Contains(a.Values[:i], v) {
				c.fault(at(p, "values", i), "arg.enum", "a value is one line of plain text and stands once")
			}
		}
	}
	for _, w := range a.Words {
		switch kind {
		case "enum":
			if !slices.Contains(a.Values, w.Name) {
				c.faultKey(at(p, "words", w.Name), "arg.enum", "this is not one of the values")
			}
		case "integer":
			if v, why := a.canonical(w.Name); why != "" || v.text != w.Name {
				c.faultKey(at(p, "words", w.Name), "arg.enum", "this is not a number that the arg takes")
			}
		}
		c.text(w.Value, at(p, "words", w.Name), `form:"words" max:"80"`)
	}
	for _, lim := range []struct {
		key string
		n   *Number
	}{{"min", a.Min}, {"max", a.Max}} {
		if lim.n == nil || kind == "number" {
			continue
		}
		n, err := strconv.ParseInt(lim.n.Text, 10, 64)
		if err != nil || kind != "integer" && (n < 0 || n > 65536) {
			c.fault(at(p, lim.key), "arg.limit", "this is no limit for the type "+kind)
		}
	}
	if a.Min != nil && a.Max != nil {
		lo, ok1 := new(big.Rat).SetString(a.Min.Text)
		hi, ok2 := new(big.Rat).SetString(a.Max.Text)
		if ok1 && ok2 && lo.Cmp(hi) > 0 {
			c.fault(at(p, "min"), "arg.limit", "min is more than max")
		}
	}
	if a.MaxItems > 1000 {
		c.fault(at(p, "max_items"), "arg.limit", "at most 1000 items fit")
	}
	if a.Pattern != "" {
		re, err := compilePattern(a.Pattern)
		if err != nil || utf8.RuneCountInString(a.Pattern) > 200 {
			c.fault(at(p, "pattern"), "arg.pattern", "this is not an RE2 expression of at most 200 characters")
		}
		a.pattern = re
	}
	if a.Default != nil && a.Optional {
		c.fault(at(p, "optional"), "arg.optional", "an arg with a default is never left out")
	}
	if a.Default != nil && !c.told(at(p, "default")) && kind != "list" && kind != "map" {
		_, why := a.canonical(a.Default.any())
		switch {
		case (a.Default.kind == '"') == slices.Contains([]string{"integer", "number", "boolean"}, kind),
			(a.Default.kind == '0') != (kind == "integer" || kind == "number"):
			c.fault(at(p, "default"), "arg.default", "the default is not of the type "+kind)
		case why != "" && kind == "enum":
			c.fault(at(p, "default"), "arg.default", "the default is not one of the values")
		case why != "" && a.pattern != nil && strings.HasSuffix(why, a.Pattern):
			c.fault(at(p, "default"), "arg.default", "the default does not have the form that pattern says")
		case why != "":
			c.fault(at(p, "default"), "arg.default", "the default does not fit: "+why)
		}
	}
	if inner {
		for _, k := range []struct {
			key string
			set bool
		}{{"connection", a.Connection != ""}, {"quiet", a.Quiet != ""}, {"money", a.Money != nil}, {"clear", a.Clear}} {
			if k.set {
				c.fault(at(p, k.key), "arg.list", fmt.Sprintf("%q has no meaning inside a list", k.key))
			}
		}
		if (kind == "list" || kind == "map" || kind == "path") && !c.told(p) {
			c.fault(at(p, "type"), "arg.list", "a list holds scalars, or objects of scalars")
		}
		return
	}
	if kind == "list" && a.Of != nil {
		if a.Of.Arg != nil {
			q := at(p, "of")
			for _, k := range []struct {
				key string
				set bool
			}{{"optional", a.Of.Arg.Optional}, {"default", a.Of.Arg.Default != nil}} {
				if k.set {
					c.fault(at(q, k.key), "arg.list", "an item is always there")
				}
			}
			c.arg(a.Of.Arg, q, true)
		}
		for _, f := range a.Of.Object {
			c.arg(f, at(p, "of", "object", f.Name), true)
		}
	}
	if a.Connection != "" {
		if !slices.ContainsFunc(c.m.Connect, func(x *Connect) bool { return x.Name == a.Connection }) {
			c.fault(at(p, "connection"), "arg.connection", fmt.Sprintf("connect has no %q", clip(a.Connection)))
		} else if a.Optional || a.Default != nil || a.Clear {
			c.fault(at(p, "connection"), "arg.connection", "the connection fills this; it is neither optional, defaulted nor cleared")
		}
	}
	if a.Quiet != "" && (c.o.Access != Write || !a.Required()) {
		c.fault(at(p, "quiet"), "arg.quiet", "only a required arg of a write needs this")
	}
	if a.Money != nil && a.Money.Currency != "" {
		cur := c.o.Args.Get(a.Money.Currency)
		if cur == nil || cur.Kind() != "string" && cur.Kind() != "enum" && cur.Kind() != "id" {
			c.fault(at(p, "money", "currency"), "money.currency", "this is not an arg that holds a currency")
		}
	}
}

var (
	literalSegment = lazily(`^[A-Za-z0-9._~!$&'()*+,;=:@-]+$`)
	wholeSegment   = lazily(`^\{([a-z][a-z0-9_]*)\}([A-Za-z0-9._~:-]*)$`)
)

func (c *opCheck) path() {
	p, path := c.at("path"), c.o.Path
	bad := func(why string) { c.fault(p, "op.path", why) }
	if n, ok := c.find(p); !ok || n.kind != '"' {
		return // required or json.type has been reported
	}
	if !strings.HasPrefix(path, "/") {
		bad("a path begins with one slash")
		return
	}
	if path == "/" {
		return
	}
	for _, seg := range strings.Split(path[1:], "/") {
		switch {
		case seg == "":
			bad("the path has an empty segment")
			return
		case seg == "." || seg == "..":
			bad("the path has a segment . or ..")
			return
		case !strings.ContainsAny(seg, "{}"):
			if !literalSegment.MatchString(seg) {
				bad("the path holds a character that no segment may hold: one of ? # \\ %, a space, a control character or one that is not ASCII")
				return
			}
			c.o.path = append(c.o.path, segment{lit: seg})
			continue
		}
		m := wholeSegment.FindStringSubmatch(seg)
		if m == nil {
			bad("a placeholder is a whole segment, or one with a literal end such as {name}.json")
			return
		}
		a := c.o.Args.Get(m[1])
		switch {
		case a == nil:
			c.noArg(p, m[1])
		case a.Kind() == "list" || a.Kind() == "map":
			bad("a list or map is no segment of a path")
		case a.Optional || a.Clear:
			bad(fmt.Sprintf("%q may be left out, and a path cannot", clip(m[1])))
		case a.Kind() == "path" && m[2] != "":
			bad("a path of several segments takes no literal end")
		}
		c.uses[m[1]] = true
		c.o.path = append(c.o.path, segment{ref: m[1], suffix: m[2]})
	}
}

func (c *opCheck) noArg(pointer, name string) {
	c.fault(pointer, "template.no_arg", fmt.Sprintf("{%s} names no arg of this operation", clip(name)),
		didYouMean(name, c.o.Args.names())+"declare it under args, or mend the name")
}

// template parses a text and holds its placeholders against the args.
func (c *opCheck) template(s, pointer string) template {
	t, why := parseTemplate(s)
	if why != "" {
		c.fault(pointer, "template.brace", why)
	}
	for _, ref := range t.refs() {
		if c.o.Args.Get(ref) == nil {
			c.noArg(pointer, ref)
		}
	}
	return t
}

func (c *opCheck) params(key string, pairs Pairs) []pairTemplate {
	var out []pairTemplate
	for _, e := range pairs {
		p := c.at(key, e.Name)
		switch {
		case changesMethod.MatchString(e.Name):
			c.faultKey(p, "param.name", "some servers take the method from a parameter of this name")
		case e.Name == "" || strings.ContainsAny(e.Name, "{}&=#?%") || strings.ContainsFunc(e.Name, func(r rune) bool { return r <= 0x20 || r > 0x7e }):
			c.faultKey(p, "param.name", "this is not a name that a parameter may have")
		}
		t := c.template(e.Value, p)
		ref, whole := t.whole()
		for _, name := range t.refs() {
			a := c.o.Args.Get(name)
			if a == nil {
				continue
			}
			if (a.Kind() == "list" || a.Kind() == "map") && !whole {
				c.fault(p, "template.list", "a list or map is the whole value or none of it")
			}
			c.uses[name], c.items[name+"."] = true, true
		}
		if a := c.o.Args.Get(ref); whole && a != nil && a.Kind() == "list" {
			object := a.Of != nil && a.Of.Object != nil
			switch {
			case a.Style == "":
				c.fault(at(c.at("args", ref), "style"), "arg.style", "a list in a query or form says how it is written: repeat, comma, brackets or indexed")
			case object && a.Style != "indexed":
				c.fault(at(c.at("args", ref), "style"), "arg.style", "a list of objects is written indexed")
			}
		}
		out = append(out, pairTemplate{e.Name, t})
	}
	return out
}

func (c *opCheck) body() {
	b := c.o.BodyJSON
	if b == nil {
		return
	}
	if b.kind != '{' && b.kind != '[' {
		c.fault(c.at("body_json"), "op.body", "a body is an object or a list")
		return
	}
	b.walk(c.at("body_json"), "", func(t *Template, p, each string) {
		if t.each != "" { // the list of {"each", "as"} itself
			a := c.o.Args.Get(t.each)
			switch {
			case a == nil:
				c.noArg(p, t.each)
			case a.Kind() != "list":
				c.fault(p, "body.each", fmt.Sprintf("%q is not a list", clip(t.each)))
			}
			if each != "" {
				c.fault(p, "body.each", "a list does not stand inside an item of another")
			}
			c.uses[t.each] = true
			return
		}
		_, whole := t.text.whole()
		for _, ref := range t.text.refs() {
			if ref == "item" || strings.HasPrefix(ref, "item.") {
				if !c.itemRef(each, ref) {
					c.fault(p, "body.each", fmt.Sprintf("{%s} does not stand for an item here", clip(ref)))
				}
				c.items[each+"."+strings.TrimPrefix(strings.TrimPrefix(ref, "item"), ".")] = true
				continue
			}
			a := c.o.Args.Get(ref)
			if a == nil {
				c.noArg(p, ref)
				continue
			}
			if (a.Kind() == "list" || a.Kind() == "map") && !whole {
				c.fault(p, "template.list", "a list or map is the whole value or none of it")
			}
			c.uses[ref] = c.uses[ref] || each == ""
			c.items[ref+"."] = true
		}
	})
}

// itemRef says whether ref stands for an item of the list each.
func (c *opCheck) itemRef(each, ref string) bool {
	a := c.o.Args.Get(each)
	if a == nil {
		return each != "" // template.no_arg has been reported
	}
	name, of := strings.CutPrefix(ref, "item.")
	if a.Of != nil && a.Of.Object != nil {
		return of && a.Of.Object.Get(name) != nil
	}
	return !of
}

// usage reports args that never reach the request, or might not though they are required.
func (c *opCheck) usage() {
	for _, key := range []string{"path", "query", "body_form", "body_json"} {
		if c.told(c.at(key)) {
			return // what would use them is not known
		}
	}
	for _, a := range c.o.Args {
		always, used := c.uses[a.Name]
		p := c.at("args", a.Name)
		switch {
		case !formPatterns()["arg"].MatchString(a.Name):
			continue // arg.name has been reported
		case !used:
			c.faultKey(p, "arg.unused", "this arg is in no part of the request")
			continue
		case a.Required() && !always:
			c.faultKey(p, "arg.maybe_unsent", "this arg is required, yet it is sent only when a list has items")
		}
		if a.Kind() != "list" || c.items[a.Name+"."] {
			continue
		}
		if a.Of == nil || a.Of.Object == nil {
			c.faultKey(p, "arg.unused", "the items of this list are in no part of the request")
			continue
		}
		for _, f := range a.Of.Object {
			if !c.items[a.Name+"."+f.Name] {
				c.faultKey(at(p, "of", "object", f.Name), "arg.unused", "this field is in no part of the request")
			}
		}
	}
}

func (c *opCheck) oneOf() {
	if c.o.OneOf == nil {
		return
	}
	if len(c.o.OneOf) < 2 {
		c.fault(c.at("one_of"), "op.one_of", "a choice has two sides at least")
	}
	for i, name := range c.o.OneOf {
		a := c.o.Args.Get(name)
		if a == nil || !a.Optional || slices.Contains(c.o.OneOf[:i], name) {
			c.fault(c.at("one_of", i), "op.one_of", fmt.Sprintf("%q is not an optional arg of this operation that stands here once", clip(name)))
		}
	}
}

func (c *opCheck) pick() {
	pk := c.o.Pick
	if pk == nil {
		return // pick.missing has been reported
	}
	p := c.at("pick")
	if strings.ContainsAny(pk.Root, "*[]") {
		c.fault(at(p, "root"), "pick.wildcard", "the root is spelt out")
	}
	if pk.Nothing != "" {
		if pk.Fields != nil || pk.Root != "" {
			c.fault(p, "pick.nothing", "nothing flows back, so there is no root and no field")
		}
		if c.o.Next != nil || len(c.o.Fail) > 0 {
			c.fault(p, "pick.nothing", "an answer without a body has no next page and no failure in it")
		}
		return
	}
	if len(pk.Fields) == 0 {
		if !c.told(at(p, "fields")) && !c.told(at(p, "nothing")) {
			c.fault(p, "pick.empty", "no field flows back")
		}
		return
	}
	if len(pk.Fields) > 100 {
		c.fault(at(p, "fields"), "pick.empty", "at most 100 fields flow back")
		return
	}
	for i, f := range pk.Fields {
		q := at(p, "fields", i)
		here := q
		if n, _ := c.find(q); n.kind == '{' {
			here = at(q, "path")
		}
		if c.told(q) {
			continue
		}
		if strings.ContainsAny(f.Path, "*[]") {
			c.fault(here, "pick.wildcard", "a field is spelt out; arrays on the way are mapped over by themselves")
			continue
		}
		n := 0
		for seg := range strings.SplitSeq(f.Path, ".") {
			if seg == projection.Any {
				n++
			}
		}
		switch {
		case n > 1:
			c.fault(here, "pick.any", "<any> stands more than once")
		case n == 1 && f.Why == "":
			c.fault(here, "pick.any", "<any> stands without a why")
		case n == 0 && f.Why != "":
			c.fault(at(q, "why"), "pick.any", "why belongs to a field with <any>")
		}
		for j, g := range pk.Fields[:i] {
			switch {
			case f.Path == g.Path:
				c.fault(here, "pick.twice", fmt.Sprintf("%q stands twice", clip(f.Path)))
			case overlaps(f.Path, g.Path) || overlaps(g.Path, f.Path):
				c.fault(here, "pick.prefix", fmt.Sprintf("this field and the field %d hold each other", j+1))
			}
		}
		if f.Money != nil && f.Money.Currency != "" {
			c.picked(c.o, sibling(f.Path, f.Money.Currency), at(q, "money", "currency"), "money.currency")
		}
	}
}

// overlaps says whether path a is a prefix of path b, <any> being every name.
func overlaps(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	if len(as) > len(bs) {
		return false
	}
	for i := range as {
		if as[i] != bs[i] && as[i] != projection.Any && bs[i] != projection.Any {
			return false
		}
	}
	return true
}

func (c *opCheck) next() {
	n := c.o.Next
	if n == nil {
		return
	}
	p := c.at("next")
	bad := func(why string) { c.fault(p, "next", why) }
	a := c.o.Args.Get(n.Arg)
	switch {
	case a == nil:
		c.fault(at(p, "arg"), "next", fmt.Sprintf("there is no arg %q", clip(n.Arg)))
		return
	case a.Required():
		c.fault(at(p, "arg"), "next", "the first page has no such value, so the arg is optional or has a default")
	case a.Kind() == "list" || a.Kind() == "map" || a.Kind() == "boolean":
		c.fault(at(p, "arg"), "next", "a page is named by a scalar")
	}
	if c.o.Access != Read {
		bad("only a read has pages")
	}
	set := map[string]bool{"path": n.Path != "", "more": n.More != "", "field": n.Field != "", "pages": n.Pages != "", "size": n.Size != 0}
	allow := map[string][]string{"link": {}, "cursor": {"path", "more"}, "last": {"field", "more"}, "page": {"pages", "size"}}[n.Style]
	for _, k := range sortedKeys(set) {
		if set[k] && !slices.Contains(allow, k) {
			c.fault(at(p, k), "next", fmt.Sprintf("%q has no meaning in the style %s", k, n.Style))
		}
	}
	switch n.Style {
	case "link":
		if c.linkParam() == "" {
			bad(fmt.Sprintf("the value is taken from the next address's query, so one query parameter is exactly {%s}", n.Arg))
		}
	case "cursor":
		if n.Path == "" {
			bad("cursor needs path")
		}
	case "last":
		if n.Field == "" || n.More == "" {
			bad("last needs field and more")
		}
	case "page":
		if (n.Pages == "") == (n.Size == 0) {
			bad("page needs either pages or size")
		}
		if a.Kind() != "integer" {
			c.fault(at(p, "arg"), "next", "a page number is an integer")
		}
	}
}

// linkParam returns the query parameter that carries the arg of next.
func (c *opCheck) linkParam() string { return c.o.linkParam() }

func (o *Op) linkParam() string {
	found := ""
	for _, q := range o.query {
		if ref, ok := q.t.whole(); ok && ref == o.Next.Arg {
			if found != "" {
				return ""
			}
			found = q.name
		}
	}
	return found
}

func (c *opCheck) fail() {
	if c.o.Fail != nil && len(c.o.Fail) == 0 {
		c.fault(c.at("fail"), "fail", "the list is empty")
	}
	for i, f := range c.o.Fail {
		p := c.item(c.at("fail"), i)
		if (f.When == "") == (f.Unless == "") {
			c.fault(p, "fail", "a failure is told by when or by unless")
		}
		if f.Code == "" && (len(f.Unauthorized) > 0 || len(f.RateLimited) > 0) {
			c.fault(p, "fail", "codes are looked for at code, and it is not said")
		}
	}
}

func (c *opCheck) consent() {
	o := c.o
	switch o.Access {
	case Read:
		for _, k := range []struct {
			key string
			set bool
		}{{"confirm", o.Confirm != ""}, {"confirm_if", o.ConfirmIf != nil}, {"effects", o.Effects != nil}, {"preview", o.Preview != nil}, {"target", o.Target != ""}} {
			if k.set {
				c.faultKey(c.at(k.key), "confirm.read", "a read asks for no confirmation")
			}
		}
		return
	case Write:
	default:
		return // enum or required has been reported
	}
	if _, ok := c.find(c.at("confirm")); !ok {
		c.fault(c.p, "confirm.missing", "a write has the sentence that a person confirms")
	}
	o.confirm = c.template(o.Confirm, c.at("confirm"))
	refs, judged := o.confirm.refs(), o.Confirm != "" && !c.told(c.at("confirm"))
	for _, a := range o.Args {
		if judged && a.Required() && a.Quiet == "" && !slices.Contains(refs, a.Name) {
			c.fault(c.at("confirm"), "confirm.arg", fmt.Sprintf("the sentence leaves out %q", clip(a.Name)), fmt.Sprintf("write {%s} into it, or say \"quiet\": \"why\" on the arg", clip(a.Name)))
		}
	}
	for _, ci := range o.ConfirmIf {
		p := c.at("confirm_if", ci.Name)
		if a := o.Args.Get(ci.Name); a == nil || a.Required() {
			c.faultKey(p, "confirm.if", fmt.Sprintf("%q is not an arg that may be left out", clip(ci.Name)))
		}
		c.text(ci.Value, p, `form:"sentence" max:"200"`)
		o.confirmIf = append(o.confirmIf, pairTemplate{ci.Name, c.template(ci.Value, p)})
	}
	for i, e := range o.Effects {
		if slices.Contains(o.Effects[:i], e) {
			c.fault(c.at("effects", i), "effects", fmt.Sprintf("%q stands twice", clip(e)))
		}
	}
	if o.Has(Irreversible) && o.Target == "" {
		c.fault(c.p, "target.missing", "what cannot be undone names its target")
	}
	if o.Target != "" && !c.told(c.at("target")) {
		if a := o.Args.Get(o.Target); a == nil || a.Optional || a.Clear || a.Kind() == "list" || a.Kind() == "map" {
			c.fault(c.at("target"), "target", fmt.Sprintf("%q is not an arg that is always there to be typed", clip(o.Target)))
		}
	}
	c.preview()
}

func (c *opCheck) preview() {
	pv := c.o.Preview
	if pv == nil {
		return
	}
	p := c.at("preview")
	read := c.namedRead(c.m, pv.Op, at(p, "op"), "preview")
	for _, e := range pv.Args {
		q := at(p, "args", e.Name)
		pv.args = append(pv.args, pairTemplate{e.Name, c.template(e.Value, q)})
		if read != nil && read.Args.Get(e.Name) == nil {
			c.faultKey(q, "preview", fmt.Sprintf("%s has no arg %q", clip(read.Name), clip(e.Name)))
		}
	}
	var why string
	if pv.say, why = parseTemplate(pv.Say); why != "" {
		c.fault(at(p, "say"), "template.brace", why)
	}
	if read == nil {
		return
	}
	for _, a := range read.Args {
		if !a.Required() && a.Connection == "" {
			continue
		}
		v, ok := pv.Args.Get(a.Name)
		t, _ := parseTemplate(v)
		for _, ref := range t.refs() {
			ok = ok && c.o.Args.Get(ref) != nil && (c.o.Args.Get(ref).Required() || c.o.Args.Get(ref).Default != nil || c.o.Args.Get(ref).Connection != "")
		}
		if q := at(p, "args", a.Name); !ok && !c.told(q) {
			c.fault(q, "preview", fmt.Sprintf("the args of this operation do not cover %q, which %s needs", clip(a.Name), clip(read.Name)))
		}
	}
	for _, ref := range pv.say.refs() {
		c.picked(read, ref, at(p, "say"), "preview")
	}
}

func (c *opCheck) scopes() {
	oa := c.m.Auth.OAuth
	if len(c.o.Scopes) == 0 || oa == nil {
		return
	}
	asked := oa.Scopes
	if c.o.Access == Write {
		asked = oa.ScopesWrite
	}
	if len(asked) == 0 {
		return
	}
	has := oa.ExpandScopes(asked)
	for i, s := range c.o.Scopes {
		if !has[s] {
			c.fault(c.at("scopes", i), "op.scopes", fmt.Sprintf("no connection of this kind asks for %q", clip(s)))
		}
	}
}

// ExpandScopes returns scopes with all that they imply, under every name they have.
func (o *OAuth) ExpandScopes(scopes []string) map[string]bool {
	has := make(map[string]bool)
	var add func(s string)
	add = func(s string) {
		if has[s] {
			return
		}
		has[s] = true
		for _, i := range o.ScopeImplies[s] {
			add(i)
		}
		for _, al := range o.ScopeAlias {
			if al.Name == s {
				add(al.Value)
			} else if al.Value == s {
				add(al.Name)
			}
		}
	}
	for _, s := range scopes {
		add(s)
	}
	return has
}

func (c *opCheck) idempotency() {
	i := c.o.Idempotency
	if i == nil {
		return
	}
	p := c.at("idempotency")
	if c.o.Access != Write {
		c.fault(p, "idempotency", "only a write needs a key")
	}
	if (i.Header == "") == (i.Body == "") {
		c.fault(p, "idempotency", "the key goes into a header or into the body")
	}
	if formPatterns()["header"].MatchString(i.Header) {
		switch why := headerAllowed(c.m, i.Header); {
		case why != "" && !strings.EqualFold(i.Header, "Idempotency-Key"):
			c.fault(at(p, "header"), "header.name", why)
		case c.m.Headers.fold(i.Header) || strings.EqualFold(c.m.Auth.Authorization.Header, i.Header):
			c.fault(at(p, "header"), "header.name", "this header is set already")
		}
	}
	if i.Body != "" {
		parent, name, _ := cutLast(i.Body)
		in := c.o.BodyJSON
		if parent != "" {
			in = in.member(parent)
		}
		if in == nil || in.kind != '{' || in.each != "" || in.member(name) != nil {
			c.fault(at(p, "body"), "idempotency", "this is not a free place in an object of body_json")
		}
	}
}

func (c *opCheck) graphQL() {
	o := c.o
	if !o.isGraphQL {
		return
	}
	p := c.at("body_json", "query")
	if o.Fail == nil && !c.told(c.at("fail")) {
		c.fault(c.p, "graphql.fail", "GraphQL reports failures at status 200, so fail is needed")
	}
	if o.Method != "POST" {
		c.fault(c.at("method"), "graphql.body", "GraphQL is sent by POST")
	}
	if o.Query != nil { // some servers prefer a document in the address
		c.faultKey(c.at("query"), "graphql.body", "the request is the body alone")
	}
	q := o.BodyJSON.member("query")
	if q == nil || q.kind != '"' {
		c.fault(c.at("body_json"), "graphql.body", "the document stands in body_json.query")
		return
	}
	for _, k := range o.BodyJSON.kids { // a stored document's id or hash would run something else
		if k.name != "query" && k.name != "variables" {
			c.faultKey(c.at("body_json", k.name), "graphql.body", "beside query and variables the body holds nothing")
		}
	}
	if len(q.text.refs()) > 0 {
		c.fault(p, "graphql.fixed", "the document is fixed: values go into variables")
		return
	}
	text := q.text.literal()
	if n, _ := c.find(p); n.text != text {
		return // template.brace has been reported
	}
	// Parsers differ in where a comment ends and in what a letter is.
	if strings.ContainsFunc(text, func(r rune) bool { return (r < ' ' && r != '\n' && r != '\t') || r > '~' || r == '#' }) {
		c.fault(p, "graphql.parse", "the document holds a comment, or a character that is not printable ASCII")
		return
	}
	doc, err := parser.ParseQuery(&ast.Source{Input: text})
	if err != nil {
		c.fault(p, "graphql.parse", "the document does not parse")
		return
	}
	if len(doc.Operations) != 1 {
		c.fault(p, "graphql.parse", fmt.Sprintf("the document has %d operations; one is wanted", len(doc.Operations)))
		return
	}
	op := doc.Operations[0]
	want := ast.Query
	if o.Access == Write {
		want = ast.Mutation
	}
	if op.Operation != want {
		c.fault(p, "graphql.kind", fmt.Sprintf("a %s is a %s, this is a %s", o.Access, want, op.Operation))
	}
	vars := o.BodyJSON.member("variables")
	if vars == nil {
		if len(op.VariableDefinitions) > 0 {
			c.fault(c.at("body_json"), "graphql.variables", "the document has variables and the body none")
		}
		return
	}
	vp := c.at("body_json", "variables")
	if vars.kind != '{' || vars.each != "" {
		c.fault(vp, "graphql.variables", "the variables are an object whose keys are fixed")
		return
	}
	for _, k := range vars.kids {
		if op.VariableDefinitions.ForName(k.name) == nil {
			c.faultKey(at(vp, k.name), "graphql.variables", fmt.Sprintf("the document has no variable $%s", clip(k.name)))
		}
	}
	key := ""
	if o.Idempotency != nil {
		if rest, ok := strings.CutPrefix(o.Idempotency.Body, "variables."); ok && !strings.Contains(rest, ".") {
			key = rest
		}
		if key != "" && op.VariableDefinitions.ForName(key) == nil {
			c.fault(c.at("idempotency", "body"), "graphql.variables", fmt.Sprintf("the document has no variable $%s", clip(key)))
		}
	}
	for _, d := range op.VariableDefinitions {
		if d.Type.NonNull && d.DefaultValue == nil && vars.member(d.Variable) == nil && d.Variable != key {
			c.fault(vp, "graphql.variables", fmt.Sprintf("the document needs $%s", clip(d.Variable)))
		}
	}
}

// looksGraphQL says whether the operation would reach a GraphQL server though it does not
// say so: by its path, or by a document in what is sent.
func (c *opCheck) looksGraphQL() bool {
	if strings.Contains(strings.ToLower(c.o.Path), "graphql") {
		return true
	}
	isDocument := func(t template) bool { return strings.Contains(t.literal(), "{") }
	for _, e := range slices.Concat(c.o.Query, c.o.BodyForm) {
		if t, _ := parseTemplate(e.Value); e.Name == "query" && isDocument(t) {
			return true
		}
	}
	bodies := []*Template{c.o.BodyJSON}
	if b := c.o.BodyJSON; b != nil && b.kind == '[' { // several at once
		bodies = b.kids
	}
	return slices.ContainsFunc(bodies, func(b *Template) bool {
		q := b.member("query")
		return q != nil && isDocument(q.text)
	})
}

func (c *opCheck) later() {
	o := c.o
	if o.Access == Read && (o.Destructive != nil || o.Idempotent != nil) {
		key := "destructive"
		if o.Destructive == nil {
			key = "idempotent"
		}
		c.faultKey(c.at(key), "op.later", "this is said of writes")
	}
	if d := o.Deprecated; d != nil && d.Use != "" {
		if formPatterns()["op-id"].MatchString(d.Use) && (c.m.Op(d.Use) == nil || d.Use == o.Name) {
			c.fault(c.at("deprecated", "use"), "op.later", fmt.Sprintf("there is no other operation %q", clip(d.Use)))
		}
	}
	if utf8.RuneCountInString(o.About) == 0 && o.Deprecated != nil && o.Deprecated.Note == "" && o.Deprecated.Use == "" {
		c.fault(c.at("deprecated"), "op.later", "it says neither what to use nor what to know")
	}
}
