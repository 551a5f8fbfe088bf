package projection

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// picks are projections and what they have to come to.
var picks = []struct {
	root   string
	fields string // separated by blanks
	in     string
	want   string // "" for no JSON
	kind   RootKind
	items  int
}{
	// Order and nesting are those of the input.
	{"", "b a", `{"a":1,"x":{"a":2},"b":3}`, `{"a":1,"b":3}`, Object, 0},
	{"", "user.login id", `{"user":{"id":1,"login":"x"},"id":7}`, `{"user":{"login":"x"},"id":7}`, Object, 0},
	{"", "user.login user.id", `{"user":{"id":1,"n":0,"login":"x"}}`, `{"user":{"id":1,"login":"x"}}`, Object, 0},
	{"", "a", " {\n\t\"a\" :\r 1 } \n", `{"a":1}`, Object, 0},
	{"", "a", `{}`, `{}`, Object, 0},
	{"", "a", `{"b":1}`, `{}`, Object, 0},
	{"", "", `{"a":""}`, ``, Object, 0}, // a field that is never there, see fieldsOf

	// The root.
	{"data.items", "a", `{"data":{"n":1,"items":[{"a":1,"b":2},{"a":2}]},"x":0}`, `[{"a":1},{"a":2}]`, Array, 2},
	{"data", "a.b", `{"data":{"a":{"b":1}}}`, `{"a":{"b":1}}`, Object, 0},
	{"data", "a", `{"data":null}`, `null`, Null, 0},
	{"", "a", ` null `, `null`, Null, 0},
	{"data", "a", `{"data":"text"}`, ``, Scalar, 0},
	{"data", "a", `{"data":12}`, ``, Scalar, 0},
	{"", "a", `12`, ``, Scalar, 0},
	{"", "a", `"text"`, ``, Scalar, 0},
	{"", "a", `true`, ``, Scalar, 0},
	{"data", "a", `{"other":{"data":{"a":1}}}`, ``, Absent, 0},
	{"data.x", "a", `{"data":null}`, ``, Absent, 0},
	{"data.x", "a", `{"data":"x"}`, ``, Absent, 0},
	{"data.x", "a", `{"data":[{"x":{"a":1}}]}`, ``, Absent, 0},
	{"data", "a", `[{"data":{"a":1}}]`, ``, Absent, 0},
	{"data", "a", `{"data":[]}`, `[]`, Array, 0},
	{"", "a", `[[{"a":1,"b":1}],[[{"a":2}]],[]]`, `[[{"a":1}],[[{"a":2}]],[]]`, Array, 3},
	{"", "a", `[null,1,"x",{"a":1},true,{},null]`, `[null,{"a":1},{},null]`, Array, 7},
	{"a", "a", `{"a":{"a":{"a":1},"b":1}}`, `{}`, Object, 0},

	// A field ends at a scalar, or an array of them.
	{"", "a", `{"a":[1,"x",null,true,[2,[]]],"b":1}`, `{"a":[1,"x",null,true,[2,[]]]}`, Object, 0},
	{"", "a b", `{"a":{"b":1},"b":2}`, `{"b":2}`, Object, 0},
	{"", "a b c", `{"b":1,"a":[1,[2,{"x":[{}]},3],4],"c":2}`, `{"b":1,"c":2}`, Object, 0},
	{"", "a b c", `{"a":[[[{}]]],"b":1,"c":2}`, `{"b":1,"c":2}`, Object, 0},
	{"", "a", `[{"a":[{}]},{"a":[1]},{"a":[[],{"a":1}]}]`, `[{},{"a":[1]},{}]`, Array, 3},
	{"", "a b", `{"a":[],"b":{}}`, `{"a":[]}`, Object, 0},
	{"", "a", `{"a":null}`, `{"a":null}`, Object, 0},

	// The middle of a path.
	{"", "a.b c", `{"a":null,"c":1}`, `{"c":1}`, Object, 0},
	{"", "a.b c", `{"a":5,"c":1}`, `{"c":1}`, Object, 0},
	{"", "a.b c", `{"a":"s","c":1}`, `{"c":1}`, Object, 0},
	{"", "a.b c", `{"a":{},"c":1}`, `{"a":{},"c":1}`, Object, 0},
	{"", "a.b c", `{"a":{"x":1},"c":1}`, `{"a":{},"c":1}`, Object, 0},
	{"", "a.b", `{"a":[]}`, `{"a":[]}`, Object, 0},
	{"", "a.b", `{"a":[{"b":1,"c":2},null,3,"x",false,{"c":1},[{"b":4},null,5]]}`, `{"a":[{"b":1},null,{},[{"b":4},null]]}`, Object, 0},
	{"", "a.b.c", `{"a":[{"b":[{"c":1},{"c":[2]}]},{"b":null}]}`, `{"a":[{"b":[{"c":1},{"c":[2]}]},{}]}`, Object, 0},

	// Any.
	{"", "files.<any>.size", `{"files":{"a.go":{"size":1,"raw":2},"b":{"size":2},"c":null}}`, `{"files":{"a.go":{"size":1},"b":{"size":2}}}`, Object, 0},
	{"", "<any>", `{"a":1,"b":{"c":2},"d":[3]}`, `{"a":1,"d":[3]}`, Object, 0},
	{"", "m.<any>.x m.k.y", `{"m":{"j":{"x":1,"y":2},"k":{"x":3,"y":4}}}`, `{"m":{"j":{"x":1},"k":{"x":3,"y":4}}}`, Object, 0},
	{"", "m.<any>.x.y m.k.<any>.z", `{"m":{"k":{"x":{"y":1,"z":2},"w":{"y":1,"z":2}},"l":{"x":{"y":1,"z":2}}}}`, `{"m":{"k":{"x":{"y":1,"z":2},"w":{"z":2}},"l":{"x":{"y":1}}}}`, Object, 0},
	{"", "<any>", `{"\"q\\":1,"\n\u0041\u0007\u200b":2}`, `{"\"q\\":1,"\nA` + "\uFFFD\uFFFD" + `":2}`, Object, 0},

	// Scalars keep their spelling.
	{"", "a", `{"a":1917043659912705296}`, `{"a":1917043659912705296}`, Object, 0},
	{"", "a b c d e", `{"a":-0,"b":1e400,"c":1.50,"d":0.0e-0,"e":-12.5E+3}`, `{"a":-0,"b":1e400,"c":1.50,"d":0.0e-0,"e":-12.5E+3}`, Object, 0},
	{"", "a b c", `{"a":true,"b":false,"c":null}`, `{"a":true,"b":false,"c":null}`, Object, 0},

	// Strings come out plain.
	{"", "a", `{"a":"\/\u0041\b\f\n\r\t\"\\"}`, `{"a":"/A` + "\uFFFD\uFFFD" + `\n\r\t\"\\"}`, Object, 0},
	{"", "a", `{"a":"<&>\u003c'"}`, `{"a":"<&><'"}`, Object, 0},
	{"", "a", `{"a":"\ud83d\ude00 😀 \u00e9 é"}`, `{"a":"😀 😀 é é"}`, Object, 0},
	{"", "a", "{\"a\":\"x\x7fy\\u007f\u0085z\u202e\u200b\ufeff\u2028\\u2066\\udb40\\udc41end\"}", "{\"a\":\"x\uFFFDy\uFFFD\uFFFDz\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDend\"}", Object, 0},
	{"", "a", "{\"a\":\"\x7f\"}", "{\"a\":\"\uFFFD\"}", Object, 0},
	{"", "a", "{\"a\":\"0123456\x7f89\"}", "{\"a\":\"0123456\uFFFD89\"}", Object, 0},
	{"", "a", "{\"a\":\"01234567\u00e9\x7f\u00e9\"}", "{\"a\":\"01234567\u00e9\uFFFD\u00e9\"}", Object, 0},
	{"", "a", `{"a":"\ufffd` + "\uFFFD" + `"}`, "{\"a\":\"\uFFFD\uFFFD\"}", Object, 0},

	// A name is the same however it is written.
	{"", "ab", `{"\u0061b":1}`, `{"ab":1}`, Object, 0},
	{"", "é", `[{"é":1},{"\u00e9":2},{"\u00E9":3}]`, `[{"é":1},{"é":2},{"é":3}]`, Array, 3},

	// Objects that differ from the one before.
	{"", "a c", `[{"a":1,"b":2,"c":3},{"c":4,"b":5,"a":6},{"b":1,"c":2},{"x":1,"a":2},{},{"a":3,"b":2,"c":1,"d":0}]`,
		`[{"a":1,"c":3},{"c":4,"a":6},{"c":2},{"a":2},{},{"a":3,"c":1}]`, Array, 6},
	{"", "a", "[{\"a\":1},{ \"a\" : 2 },{\n\"a\":3}]", `[{"a":1},{"a":2},{"a":3}]`, Array, 3},
}

func fieldsOf(s string) []string {
	if s == "" {
		return []string{"never"}
	}
	return strings.Split(s, " ")
}

func TestPick(t *testing.T) {
	for _, c := range picks {
		spec := Spec{Root: c.root, Fields: fieldsOf(c.fields)}
		want := c.want
		if c.fields == "" {
			want = "{}"
		}
		t.Run(c.root+"/"+c.fields+"/"+c.in, func(t *testing.T) {
			out := run(t, mustCompile(t, spec), []byte(c.in))
			if string(out.JSON) != want || out.Size != len(want) {
				t.Errorf("JSON:\n got %s (%d)\nwant %s", out.JSON, out.Size, want)
			}
			if out.Root != c.kind || out.Items != c.items {
				t.Errorf("root %v with %d, want %v with %d", out.Root, out.Items, c.kind, c.items)
			}
			if out.Read != int64(len(c.in)) {
				t.Errorf("read %d of %d", out.Read, len(c.in))
			}
			differential(t, spec, []byte(c.in))
		})
	}
}

// faults are inputs that are refused. The fields are a and d.e.
var faults = []struct {
	in, msg, path string
	offset        int64
}{
	{``, "empty", "", 0},
	{`  `, "ends early", "", 2},
	{"\xEF\xBB\xBF{}", "byte order mark", "", 0},
	{`{"a":1}x`, "data after the value", "", 7},
	{`{"a":1} {}`, "data after the value", "", 8},
	{`1,2`, "data after the value", "", 1},
	{`[]]`, "data after the value", "", 2},
	{`}`, "expected a value", "", 0},
	{`nul`, "ends early", "", 3},
	{`nulx`, "invalid literal", "", 0},
	{`truex`, "data after the value", "", 4},
	{`[tru]`, "invalid literal", "", 1},
	{`{"a":fals}`, "invalid literal", "a", 5},
	{`{"a":True}`, "expected a value", "a", 5},
	{`[1,]`, "expected a value", "", 3},
	{`[,1]`, "expected a value", "", 1},
	{`[1 2]`, "expected a comma or the end", "", 3},
	{`[1}`, "expected a comma or the end", "", 2},
	{`{"a":1]`, "expected a comma or the end", "", 6},
	{`{"a":1,}`, "expected a name", "", 7},
	{`{,}`, "expected a name", "", 1},
	{`{a:1}`, "expected a name", "", 1},
	{`{"a" 1}`, "expected a colon", "", 5},
	{`{"a"}`, "expected a colon", "", 4},
	{`{"a":}`, "expected a value", "a", 5},
	{`{"a":1,"d":{"e":!}}`, "expected a value", "d.e", 16},
	{`{"a":1,"x":[{"y":[1,{"z":?}]}]}`, "expected a value", "x.y.z", 25},
	{`{"a":1 "b":2}`, "expected a comma or the end", "", 7},
	{"[1\x00]", "expected a comma or the end", "", 2},
	{"[\x00]", "expected a value", "", 1},
	{"\x0b1", "expected a value", "", 0},
	{"{\x00}", "expected a name", "", 1},
	{`{"a":'x'}`, "expected a value", "a", 5},

	// Numbers, skipped and picked.
	{`[01]`, "expected a comma or the end", "", 2},
	{`[-01]`, "expected a comma or the end", "", 3},
	{`[1.]`, "invalid number", "", 3},
	{`[.5]`, "expected a value", "", 1},
	{`[+1]`, "expected a value", "", 1},
	{`[-]`, "invalid number", "", 2},
	{`[1e]`, "invalid number", "", 3},
	{`[1e+]`, "invalid number", "", 4},
	{`[1.e1]`, "invalid number", "", 3},
	{`[0x10]`, "expected a comma or the end", "", 2},
	{`[NaN]`, "expected a value", "", 1},
	{`[1_0]`, "expected a comma or the end", "", 2},
	{`-`, "ends early", "", 1},
	{`1.`, "ends early", "", 2},
	{`{"a":01}`, "expected a comma or the end", "", 6},
	{`{"a":1.}`, "invalid number", "a", 7},
	{`{"a":-}`, "invalid number", "a", 6},
	{`{"a":` + strings.Repeat("1", 513) + `}`, "number longer than 512 digits", "a", 5},
	{`[` + strings.Repeat("1", 513) + `]`, "number longer than 512 digits", "", 1},
	{`[-` + strings.Repeat("1", 9000) + `]`, "number longer than 512 digits", "", 1},

	// Strings, skipped and picked.
	{"[\"a\x01b\"]", "control character in string", "", 3},
	{"{\"a\":\"a\nb\"}", "control character in string", "a", 7},
	{"{\"a\":\"a\x00b\"}", "control character in string", "a", 7},
	{"[\"a\x00b\"]", "control character in string", "", 3},
	{`["\x"]`, "invalid escape sequence", "", 2},
	{`{"a":"\x"}`, "invalid escape sequence", "a", 6},
	{`["\u12"]`, "invalid escape sequence", "", 2},
	{`["\u12g4"]`, "invalid escape sequence", "", 2},
	{`["\ud800"]`, "lone surrogate", "", 2},
	{`["\ud800x"]`, "lone surrogate", "", 2},
	{`["\ud800\n"]`, "lone surrogate", "", 2},
	{`["\ud800\u0041"]`, "lone surrogate", "", 2},
	{`["\ud800\ud800"]`, "lone surrogate", "", 2},
	{`["\udc00\ud800"]`, "lone surrogate", "", 2},
	{`{"a":"\udc00"}`, "lone surrogate", "a", 6},
	{"[\"\xff\"]", "invalid UTF-8", "", 2},
	{"[\"\xc0\x80\"]", "invalid UTF-8", "", 2},
	{"[\"\xed\xa0\x80\"]", "invalid UTF-8", "", 2},
	{"[\"\xf4\x90\x80\x80\"]", "invalid UTF-8", "", 2},
	{"[\"\xe2\x82\"]", "invalid UTF-8", "", 2},
	{"{\"a\":\"x\xe2\x82\"}", "invalid UTF-8", "a", 7},
	{"\"\xe2\x82", "ends early", "", 3},

	// Names.
	{`{"a":1,"a":2}`, "duplicate name", "a", 7},
	{`{"a":1,"\u0061":2}`, "duplicate name", "a", 7},
	{`{"\u0061":1,"a":2}`, "duplicate name", "a", 12},
	{`{"":1,"":2}`, "duplicate name", "", 6},
	{`{"x":[{"k":{"b":1,"b":1}}]}`, "duplicate name", "x.k.b", 18},
	{`[{"b":1,"c":2},{"b":1,"b":2}]`, "duplicate name", "b", 22},
	{`[{"b":1,"c":2,"d":3},{"d":1,"b":2,"c":4,"d":2}]`, "duplicate name", "d", 40},
	{`[{"b":1,"c":2,"d":3},{"b":1,"c":2,"d":3,"b":2}]`, "duplicate name", "b", 40},
	{`[{"b":1,"c":2},{"c":1,"b":2},{"b":1,"c":3,"b":4}]`, "duplicate name", "b", 42},
	{"{\"\xff\":1}", "invalid UTF-8 in name", "", 2},
	{"{\"a\x1fb\":1}", "control character in name", "", 3},
	{`{"\q":1}`, "invalid escape sequence", "", 2},
	{`{"\ud800":1}`, "lone surrogate", "", 2},
	{`{"\u1":1}`, "invalid escape sequence", "", 2},
	{`{"` + strings.Repeat("n", 4097) + `":1}`, "name too long", "", 1},
	{`{"` + strings.Repeat("n", 20000) + `":1}`, "name too long", "", 1},

	// What a path shows of a name.
	{"{\"\u202e\\u0007\x7f\":!}", "expected a value", "\uFFFD\uFFFD\uFFFD", 14},
	{`{"` + strings.Repeat("é", 65) + `":!}`, "expected a value", strings.Repeat("é", 64) + "…", 134},
	{`{"` + strings.Repeat("n", 200) + `":!}`, "expected a value", strings.Repeat("n", 64) + "…", 204},
	{`{"a\nb":!}`, "expected a value", "a\uFFFDb", 8},

	{strings.Repeat("[", 100), "too deep", "", 64},
	{strings.Repeat(`{"d":`, 100), "too deep", strings.TrimPrefix(strings.Repeat(".d", 64), "."), 320},
}

var faultSpec = Spec{
	Fields:   []string{"a", "d.e"},
	Captures: []Capture{{Path: "a"}, {Path: "x.y.z"}, {Path: "d"}},
}

func TestFaults(t *testing.T) {
	for _, c := range faults {
		t.Run(fmt.Sprintf("%.40q", c.in), func(t *testing.T) {
			for _, spec := range []Spec{{Fields: []string{"a", "d.e"}}, {Fields: []string{"other"}}, {}, faultSpec} {
				out, err := mustCompile(t, spec).Run(strings.NewReader(c.in), Limits{})
				var syntax *SyntaxError
				if !errors.As(err, &syntax) {
					t.Fatalf("err = %v", err)
				}
				if syntax.Msg != c.msg || syntax.Path != c.path || syntax.Offset != c.offset {
					t.Errorf("got  %q in %q at %d\nwant %q in %q at %d", syntax.Msg, syntax.Path, syntax.Offset, c.msg, c.path, c.offset)
				}
				early := c.msg == "empty" || c.msg == "ends early"
				if errors.Is(err, io.ErrUnexpectedEOF) != early {
					t.Errorf("%v: ErrUnexpectedEOF is %v", err, !early)
				}
				if out.JSON != nil || out.Captures != nil {
					t.Errorf("output with an error: %+v", out)
				}
			}
			differential(t, faultSpec, []byte(c.in))
		})
	}
}

func TestCaptures(t *testing.T) {
	found := func(kind byte, text string) Value { return Value{Found: true, Kind: kind, Text: text} }
	empty := func(kind byte) Value { return Value{Found: true, Kind: kind, Empty: true} }
	long := strings.Repeat("é", 3000)
	for _, c := range []struct {
		path string
		last bool
		in   string
		want Value
	}{
		{"message", false, `{"message":"Not \u0046ound"}`, found('"', "Not Found")},
		{"message", false, `{"x":{"message":1}}`, Value{}},
		{"message", false, `{"message":""}`, empty('"')},
		{"message", false, `{"message":"\u202e"}`, found('"', "\u202e")},
		{"message", false, `{"message":null}`, found('n', "")},
		{"message", false, `{"message":true}`, found('t', "")},
		{"message", false, `{"message":false}`, found('f', "")},
		{"message", false, `{"message":-1.50e3}`, found('0', "-1.50e3")},
		{"message", false, `{"message":0}`, found('0', "0")},
		{"message", false, `{"message":[ ]}`, empty('[')},
		{"message", false, `{"message":{
		}}`, empty('{')},
		{"message", false, `{"message":[ 1]}`, found('[', "")},
		{"message", false, `{"message":{"a":1}}`, found('{', "")},
		{"message", false, `{"message":["a","b"]}`, found('[', "")},
		{"message", false, `[{"x":1},{"message":"a"},{"message":"b"}]`, found('"', "a")},
		{"message", true, `[{"message":"a"},{"message":"b"},{"x":1}]`, found('"', "b")},
		{"errors.message", false, `{"errors":[[{"message":"a"}],{"message":"b"}]}`, found('"', "a")},
		{"errors.message", true, `{"errors":[[{"message":"a"}],{"message":"b"}]}`, found('"', "b")},
		{"errors.message", false, `{"errors":"text"}`, Value{}},
		{"a.b.c", false, `{"a":{"b":{"c":7}}}`, found('0', "7")},
		{"a.b.c", false, `{"a":{"b":{"d":7}},"b":{"c":1}}`, Value{}},
		{"message", false, `"text"`, Value{}},
		{"message", false, `{"message":"` + long + `"}`, Value{Found: true, Kind: '"', Text: long[:4096], Cut: true}},
		{"message", false, `{"message":"x` + long + `"}`, Value{Found: true, Kind: '"', Text: "x" + long[:4094], Cut: true}},
	} {
		for _, fields := range [][]string{nil, {"message", "errors.message"}, {"errors", "a.b.c"}} {
			spec := Spec{Fields: fields, Captures: []Capture{{Path: c.path, Last: c.last}}}
			out := run(t, mustCompile(t, spec), []byte(c.in))
			if c.last {
				c.want.Met = out.Captures[0].Met // held against the reference elsewhere
			}
			if out.Captures[0] != c.want {
				t.Errorf("%s in %.80s:\n got %+v\nwant %+v", c.path, c.in, out.Captures[0], c.want)
			}
			if fields == nil && out.JSON != nil {
				t.Errorf("JSON without fields: %s", out.JSON)
			}
			differential(t, spec, []byte(c.in))
		}
	}
	out := run(t, mustCompile(t, Spec{Root: "data", Captures: []Capture{{Path: "data.id"}, {Path: "data", Last: true}, {Path: "data.id", Last: true}}}), []byte(`{"data":[{"id":1},2,[]]}`))
	if out.Root != Array || out.Items != 3 || out.JSON != nil || out.Captures[0].Text != "1" || out.Captures[1].Kind != '[' || out.Captures[2].Text != "1" || out.Captures[2].Met != 1 {
		t.Errorf("%+v", out)
	}
}

func TestCompileErrors(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		msg  string
	}{
		{Spec{Fields: []string{""}}, "empty segment"},
		{Spec{Fields: []string{"a..b"}}, "empty segment"},
		{Spec{Fields: []string{".a"}}, "empty segment"},
		{Spec{Root: "a.", Fields: []string{"a"}}, "empty segment"},
		{Spec{Captures: []Capture{{Path: ""}}}, "empty segment"},
		{Spec{Fields: []string{"a", "b", "a"}}, "twice"},
		{Spec{Fields: []string{"a", "a.b"}}, "leads through"},
		{Spec{Fields: []string{"a.b.c", "a.b"}}, "leads through"},
		{Spec{Fields: []string{"a.<any>", "a.b.c"}}, "leads through"},
		{Spec{Fields: []string{"a.<any>.c", "a.b"}}, "leads through"},
		{Spec{Fields: []string{"<any>.<any>"}}, "more than one"},
		{Spec{Root: "<any>", Fields: []string{"a"}}, "for fields only"},
		{Spec{Captures: []Capture{{Path: "a.<any>"}}}, "for fields only"},
	} {
		if _, err := Compile(c.spec); err == nil || !strings.Contains(err.Error(), c.msg) {
			t.Errorf("%+v: %v, want %q", c.spec, err, c.msg)
		}
	}
	mustCompile(t, Spec{Fields: []string{"ab", "a.b", "a.bc", "abc"}})
}

func TestLimits(t *testing.T) {
	p := mustCompile(t, Spec{Fields: []string{"a", "b"}})
	deep := strings.Repeat(`{"x":[`, 5) + strings.Repeat("]}", 5)
	for _, c := range []struct {
		in  string
		lim Limits
		msg string // "" if it is allowed
	}{
		{`{"a":1}`, Limits{MaxBytes: 7}, ""},
		{`{"a":1}`, Limits{MaxBytes: 6}, "longer than 6 bytes"},
		{`{"a":1} `, Limits{MaxBytes: 7}, "longer than 7 bytes"},
		{`{"a":1` + strings.Repeat(" ", 20000) + `}`, Limits{MaxBytes: 10000}, "longer than 10000 bytes"},
		{`{"a":1` + strings.Repeat(" ", 20000) + `}`, Limits{MaxBytes: window}, fmt.Sprintf("longer than %d bytes", window)},
		{deep, Limits{MaxDepth: 10}, ""},
		{deep, Limits{MaxDepth: 9}, "too deep"},
		{`{"a":{"a":1,"b":2},"b":{"a":1,"b":1}}`, Limits{MaxNames: 2}, ""},
		{`{"a":1,"b":2,"c":3}`, Limits{MaxNames: 2}, "too many names"},
		{`{"abc":1}`, Limits{MaxName: 3}, ""},
		{`{"abcd":1}`, Limits{MaxName: 3}, "name too long"},
		{`{"` + strings.Repeat("n", 4096) + `":1}`, Limits{}, ""},
		{`{"` + strings.Repeat("n", 4096) + `":1}`, Limits{MaxName: 1 << 20}, ""},
		{`{"` + strings.Repeat("n", 4097) + `":1}`, Limits{MaxName: 1 << 20}, "name too long"},
		{strings.Repeat("[", 64) + strings.Repeat("]", 64), Limits{}, ""},
		{strings.Repeat("[", 65) + strings.Repeat("]", 65), Limits{}, "too deep"},
		{strings.Repeat("[", 5000) + strings.Repeat("]", 5000), Limits{MaxDepth: 5000}, ""},
		{strings.Repeat(`{"x":`, 500) + "1" + strings.Repeat("}", 500), Limits{MaxDepth: 500}, ""},
		{`[` + strings.Repeat("1", 512) + `]`, Limits{}, ""},
		{strings.Repeat(" ", 33<<20), Limits{}, "longer than 33554432 bytes"},
	} {
		_, err := p.Run(strings.NewReader(c.in), c.lim)
		switch {
		case c.msg == "" && err != nil:
			t.Errorf("%.30s with %+v: %v", c.in, c.lim, err)
		case c.msg != "" && (err == nil || !strings.Contains(err.Error(), c.msg)):
			t.Errorf("%.30s with %+v: %v, want %s", c.in, c.lim, err, c.msg)
		}
		var limit *LimitError
		if strings.HasPrefix(c.msg, "longer") && !errors.As(err, &limit) {
			t.Errorf("%v is no LimitError", err)
		}
	}
}

// TestMaxOut gives every limit on the output, with pieces that come and go.
func TestMaxOut(t *testing.T) {
	in := []byte(`[{"a":"0123456789","b":[1,2,3,4,5,6,7,8,9,{}]},{"a":"` + strings.Repeat("x", 9000) + `\n","b":[1,2]},{"b":["` + strings.Repeat("y", 5000) + `",[{}]],"a":1}]`)
	spec := Spec{Fields: []string{"a", "b"}}
	want, err := refRun(spec, in)
	if err != nil {
		t.Fatal(err)
	}
	p := mustCompile(t, spec)
	for limit := 1; limit < want.Size+10; limit++ {
		out, err := p.Run(bytes.NewReader(in), Limits{MaxOut: limit})
		if err != nil {
			t.Fatal(err)
		}
		if out.Size != want.Size {
			t.Fatalf("limit %d: size %d, want %d", limit, out.Size, want.Size)
		}
		if fits := limit >= want.Size; fits != (out.JSON != nil) || fits && !bytes.Equal(out.JSON, want.JSON) {
			t.Fatalf("limit %d: %d bytes of JSON", limit, len(out.JSON))
		}
	}

	big := []byte(`{"a":"` + strings.Repeat("x", 1<<20) + `"}`)
	if out, err := p.Run(bytes.NewReader(big), Limits{MaxOut: 2 << 20}); err != nil || !bytes.Equal(out.JSON, big) {
		t.Errorf("%d bytes, %v", len(out.JSON), err)
	}
	if out, err := p.Run(bytes.NewReader(big), Limits{}); err != nil || out.JSON != nil || out.Size != len(big) {
		t.Errorf("size %d, %v", out.Size, err)
	}
}

// TestManyNames has more names than are remembered, and one of them twice.
func TestManyNames(t *testing.T) {
	p := mustCompile(t, Spec{Fields: []string{"name7", "name1000.a", "z"}})
	for _, n := range []int{10, 17, 33, 65, 130, 257, 300, 1500, 60000} {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"name%d":%d,`, i, i)
		}
		names := b.String()
		for _, in := range []string{"{%s}", `{"skip":{%s}}`, `[{"z":1},{%s}]`, `[{%[1]s},{%[1]s}]`, `{"x":{"y":1,"p":{%[1]s},%[1]s},%[1]s}`} {
			good := []byte(strings.ReplaceAll(fmt.Sprintf(in, names), ",}", "}"))
			if _, err := p.Run(bytes.NewReader(good), Limits{}); err != nil {
				t.Fatalf("%d names in %s: %v", n, in, err)
			}
			for _, twice := range []string{"name0", "name1", fmt.Sprint("name", n/2), fmt.Sprint("name", n-1), `\u006eame9`} {
				bad := fmt.Sprintf(in, names+`"`+twice+`":0`)
				_, err := p.Run(strings.NewReader(bad), Limits{})
				var syntax *SyntaxError
				if !errors.As(err, &syntax) || syntax.Msg != "duplicate name" {
					t.Fatalf("%d names in %s and %s: %v", n, in, twice, err)
				}
			}
		}
		if n == 60000 {
			// Each object is within the limit, all open ones together are not.
			in := strings.Repeat("{"+names+`"in":`, 6) + "1" + strings.Repeat("}", 6)
			if _, err := p.Run(strings.NewReader(in), Limits{}); err == nil || !strings.Contains(err.Error(), "too many names") {
				t.Errorf("%d names six times: %v", n, err)
			}
		}
		if n <= 1500 {
			differential(t, Spec{Fields: []string{"name7", "<any>"}}, []byte("[{"+strings.TrimSuffix(names, ",")+"}]"))
		}
	}
}

// TestManyShapes has more paths and names than are remembered, so that strays
// of different meaning come by turns.
func TestManyShapes(t *testing.T) {
	var b strings.Builder
	b.WriteString(`[`)
	for i := range 3 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{`)
		for j := range 700 {
			fmt.Fprintf(&b, `"k%d":{"a":%d,"b":{"c":[{"d":1,"a":2}]},"n%d":[{"a":1}]},`, j, i, j)
		}
		b.WriteString(`"end":{"a":1,"b":{"a":1}}}`)
	}
	b.WriteString(`]`)
	for _, spec := range []Spec{
		{Fields: []string{"<any>.a"}},
		{Fields: []string{"k3.a", "k699.b.c.d", "k650.a", "end.a", "k650.n650.a"}},
		{Fields: []string{"<any>.b.c.a", "k699.a"}, Captures: []Capture{{Path: "k698.a", Last: true}, {Path: "k5.b.c.d"}, {Path: "k690.n690.a"}}},
	} {
		p := mustCompile(t, spec)
		want, err := refRun(spec, []byte(b.String()))
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.Run(strings.NewReader(b.String()), Limits{MaxOut: 1 << 20})
		if err != nil || !reflect.DeepEqual(out, want) {
			t.Errorf("%v, %v\n got %.300s\nwant %.300s", spec, err, out.JSON, want.JSON)
		}
	}
	in := strings.Replace(b.String(), `"k690":{"a":2`, `"k690":{"q":?`, 1)
	_, err := mustCompile(t, Spec{}).Run(strings.NewReader(in), Limits{})
	var syntax *SyntaxError
	if !errors.As(err, &syntax) || syntax.Path != "k690.q" {
		t.Errorf("path in strays: %v", err)
	}
}

func TestLongTokens(t *testing.T) {
	long := strings.Repeat("0123456789 é😀 ", 3000)
	p := mustCompile(t, Spec{Fields: []string{"b"}})
	for _, c := range []string{
		`{"a":"` + long + `","b":"` + long + `"}`,
		`{"a":"` + strings.Repeat(`\ud83d\ude00\n`, 3000) + `","b":"` + strings.Repeat(`\ud83d\ude00\n`, 3000) + `"}`,
		`{"a":1` + strings.Repeat(" \n", 9000) + `,` + strings.Repeat(" ", 9000) + `"b"` + strings.Repeat("\t", 9000) + `:` + strings.Repeat(" ", 9000) + `2` + strings.Repeat(" ", 9000) + `}` + strings.Repeat(" ", 9000),
		`[{"` + strings.Repeat("n", 4090) + `":1,"b":1},{"` + strings.Repeat("n", 4090) + `":1,"b":2}]`,
	} {
		want, err := refRun(Spec{Fields: []string{"b"}}, []byte(c))
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.Run(iotest.HalfReader(strings.NewReader(c)), Limits{MaxOut: 1 << 20})
		if err != nil || !bytes.Equal(out.JSON, want.JSON) || out.Read != int64(len(c)) {
			t.Errorf("%.30s: %v\n got %.50s\nwant %.50s", c, err, out.JSON, want.JSON)
		}
	}
}

// sample has every kind of token.
const sample = `{"a": [1, -2.5e+3, {"b": null}], "é\u0041": "x\u00e9\ud83d\ude00é😀\n", "d": {"e": [true, false, "s"], "f": {}}, "x":{"y":[{"z":"t"},[]]}} `

func TestTruncated(t *testing.T) {
	p := mustCompile(t, faultSpec)
	run(t, p, []byte(sample))
	cut := errors.New("cut")
	for i := range len(sample) - 1 {
		part := sample[:i]
		_, err := p.Run(strings.NewReader(part), Limits{})
		var syntax *SyntaxError
		if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.As(err, &syntax) || syntax.Offset != int64(i) {
			t.Errorf("%q: %v", part, err)
		}
		for _, fault := range []error{cut, io.ErrUnexpectedEOF} {
			_, err = p.Run(io.MultiReader(strings.NewReader(part), iotest.ErrReader(fault)), Limits{})
			var read *ReadError
			if !errors.Is(err, fault) || !errors.As(err, &read) || errors.As(err, &syntax) {
				t.Errorf("%q: %v", part, err)
			}
		}
		_, err = p.Run(strings.NewReader(sample), Limits{MaxBytes: int64(max(1, i))})
		var limit *LimitError
		if !errors.As(err, &limit) {
			t.Errorf("%q: %v", part, err)
		}
	}
	// A fault before the cut is what counts.
	if _, err := p.Run(io.MultiReader(strings.NewReader("[x"), iotest.ErrReader(cut)), Limits{}); errors.Is(err, cut) {
		t.Error(err)
	}
	// The text is only complete when the reader says so.
	if _, err := p.Run(io.MultiReader(strings.NewReader("{}"), iotest.ErrReader(cut)), Limits{}); !errors.Is(err, cut) {
		t.Error(err)
	}
}

type idleReader struct{}

func (idleReader) Read([]byte) (int, error) { return 0, nil }

type liar struct{}

func (liar) Read(p []byte) (int, error) { return len(p) + 1, nil }

func TestBadReaders(t *testing.T) {
	p := mustCompile(t, faultSpec)
	if _, err := p.Run(idleReader{}, Limits{}); !errors.Is(err, io.ErrNoProgress) {
		t.Error(err)
	}
	if _, err := p.Run(liar{}, Limits{}); !errors.Is(err, errBadRead) {
		t.Error(err)
	}
}

func TestErrorText(t *testing.T) {
	_, err := mustCompile(t, faultSpec).Run(strings.NewReader(`{"d":{"secret":"value`), Limits{})
	if got, want := err.Error(), "json: ends early at byte 21 in d.secret"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	_, err = mustCompile(t, faultSpec).Run(strings.NewReader("[?"), Limits{})
	if got, want := err.Error(), "json: expected a value at byte 1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	_, err = mustCompile(t, faultSpec).Run(iotest.ErrReader(io.ErrClosedPipe), Limits{})
	if got, want := err.Error(), "json: reading after byte 0: io: read/write on closed pipe"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(Absent, Null, Object, Array, Scalar, RootKind(9)), "absent null object array scalar RootKind(9)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// chunked gives its text in pieces of random sizes.
type chunked struct {
	data []byte
	rand *rand.Rand
}

func (c *chunked) Read(p []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 1+c.rand.IntN(700))], c.data)
	c.data = c.data[n:]
	if len(c.data) == 0 && n%2 == 0 {
		return n, io.EOF
	}
	return n, nil
}

// differential compares a run with the plain projection, and with runs that
// get the text in pieces or at the end of the window.
func differential(t *testing.T, spec Spec, data []byte) {
	t.Helper()
	p := mustCompile(t, spec)
	lim := Limits{MaxOut: 1 << 20}
	out, err := p.Run(bytes.NewReader(data), lim)
	valid := json.Valid(data)
	want, refErr := Output{}, error(nil)
	if valid {
		want, refErr = refRun(spec, data)
	}
	switch {
	case err == nil && !valid:
		t.Fatalf("accepts what json.Valid does not: %.200q", data)
	case err == nil && refErr != nil:
		t.Fatalf("accepts %.200q: %v", data, refErr)
	case err == nil && !reflect.DeepEqual(out, want):
		t.Fatalf("%.200q with %v\n got %s %+v\nwant %s %+v", data, spec, out.JSON, out, want.JSON, want)
	case err == nil && out.JSON != nil && !(json.Valid(out.JSON) && utf8.Valid(out.JSON)):
		t.Fatalf("%.200q with %v: output %q", data, spec, out.JSON)
	case err != nil && valid && refErr == nil && plainEnough(data):
		t.Fatalf("refuses %.200q: %v", data, err)
	}

	same := func(how string, pad int, r io.Reader) {
		t.Helper()
		out2, err2 := p.Run(r, lim)
		out2.Read -= int64(pad)
		a, b := new(SyntaxError), new(SyntaxError)
		if errors.As(err, &a) && errors.As(err2, &b) {
			if pad > 0 && len(data) > 0 {
				b.Offset -= int64(pad)
			}
			if *a != *b && a.Msg != "empty" && a.Msg != "byte order mark" {
				t.Fatalf("%.200q %s: %+v, want %+v", data, how, *b, *a)
			}
			return
		}
		if (err == nil) != (err2 == nil) || err == nil && !reflect.DeepEqual(out, out2) {
			t.Fatalf("%.200q %s:\n got %s %+v %v\nwant %s %+v %v", data, how, out2.JSON, out2, err2, out.JSON, out, err)
		}
	}
	same("one byte at a time", 0, iotest.OneByteReader(bytes.NewReader(data)))
	same("in pieces", 0, &chunked{data, rand.New(rand.NewPCG(1, uint64(len(data))))})
	same("with the error at once", 0, iotest.DataErrReader(bytes.NewReader(data)))
	if len(data) < 300 && !bytes.HasPrefix(data, []byte("\xEF\xBB\xBF")) {
		for i := range len(data) + 1 {
			pad := window - i
			same(fmt.Sprintf("cut by the window at %d", i), pad, io.MultiReader(strings.NewReader(strings.Repeat(" ", pad)), bytes.NewReader(data)))
		}
	}
}

// plainEnough reports whether a valid text is within what a run accepts too.
func plainEnough(data []byte) bool {
	return utf8.Valid(data) && !bytes.Contains(data, []byte(`\u`)) && len(data) < 512 &&
		bytes.Count(data, []byte("{"))+bytes.Count(data, []byte("[")) < defaultDepth
}

func TestSampleDifferential(t *testing.T) {
	differential(t, faultSpec, []byte(sample))
	differential(t, Spec{Fields: repoFields, Captures: []Capture{{Path: "owner.login", Last: true}}}, githubPage(t))
	differential(t, Spec{Root: issueRoot, Fields: issueFields, Captures: []Capture{{Path: "data.viewer.assignedIssues.pageInfo.endCursor"}}}, linearPage(t))
}

func TestVisible(t *testing.T) {
	hidden := []rune{
		0, 0x1F, 0x0B, 0x0C, 0x7F, 0x80, 0x9F, 0xAD, 0x61C, 0x180E, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F,
		0x2028, 0x2029, 0x202A, 0x202E, 0x34F, 0x115F, 0x1160, 0x180B, 0x2060, 0x2064, 0x2065, 0x206F, 0x2800, 0x3164, 0xFFA0, 0x2066, 0x2069, 0xFDD0, 0xFDEF, 0xFEFF,
		0xFFF9, 0xFFFB, 0xFFFE, 0xFFFF, 0x1FFFE, 0x10FFFF, 0xE0000, 0xE0001, 0xE007F, 0xE0100, 0xE01EF,
	}
	shown := []rune{
		'\t', '\n', '\r', ' ', 'a', '~', 0xA0, 0xAC, 0xAE, 0x61B, 0x200A, 0x2010, 0x2027, 0x202F, 0x205F,
		0x2070, 0xFDCF, 0xFDF0, 0xFE0F, 0xFFFC, 0xFFFD, 0x10000, 0x1F600, 0xDFFFD, 0xE1000, 0x10FFFD,
	}
	for _, r := range hidden {
		if Visible(r) {
			t.Errorf("%U is visible", r)
		}
	}
	for _, r := range shown {
		if !Visible(r) {
			t.Errorf("%U is not visible", r)
		}
	}
}

func TestConcurrent(t *testing.T) {
	p := mustCompile(t, Spec{Fields: repoFields})
	data := githubPage(t)
	want := run(t, p, data)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				out, err := p.Run(bytes.NewReader(data), Limits{})
				if err != nil || !bytes.Equal(out.JSON, want.JSON) {
					t.Error("differs", err)
				}
			}
		})
	}
	wg.Wait()
}

func TestAllocations(t *testing.T) {
	p := mustCompile(t, Spec{Fields: repoFields})
	data := githubPage(t)
	r := bytes.NewReader(data)
	if n := testing.AllocsPerRun(20, func() {
		r.Reset(data)
		if _, err := p.Run(r, Limits{}); err != nil {
			t.Fatal(err)
		}
	}); n > 10 {
		t.Errorf("%v allocations", n)
	}
}

// TestMemory runs with nothing prepared.
func TestMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		spec Spec
		data []byte
	}{
		{"GitHub", Spec{Fields: repoFields}, githubPage(t)},
		{"Linear", Spec{Root: issueRoot, Fields: issueFields}, linearPage(t)},
		{"full", Spec{Fields: []string{"a"}}, []byte(`{"a":"` + strings.Repeat("x", defaultOut-8) + `"}`)},
	} {
		p := mustCompile(t, c.spec)
		r := bytes.NewReader(c.data)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out, err := new(scanner).run(p, r, Limits{}.filled())
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatal(err)
		}
		got := int(after.TotalAlloc - before.TotalAlloc)
		t.Logf("%s: %d bytes in %d allocations, of which %d are the output", c.name, got, after.Mallocs-before.Mallocs, len(out.JSON))
		if got > len(out.JSON)+64<<10 {
			t.Errorf("%s: %d bytes for an output of %d", c.name, got, len(out.JSON))
		}
	}
}

// writer makes up texts of few names, so that paths meet and names clash.
type writer struct {
	*rand.Rand
	b strings.Builder
}

func (w *writer) space() {
	w.b.WriteString([]string{"", "", "", " ", "\n\t"}[w.IntN(5)])
}

func (w *writer) name() string {
	return []string{"a", "b", "c", "d", "e", "f", "x", "y", `\u0061`, "é", ""}[w.IntN(11)]
}

func (w *writer) value(depth int) {
	w.space()
	kind := w.IntN(10)
	if depth == 0 {
		kind = w.IntN(5)
	}
	switch kind {
	case 0:
		w.b.WriteString([]string{"null", "true", "false"}[w.IntN(3)])
	case 1:
		w.b.WriteString([]string{"0", "-1", "12.50", "1e5", "1234567890123456789"}[w.IntN(5)])
	case 2, 3, 4:
		w.b.WriteString([]string{`""`, `"text"`, `"\n\ud83d\ude00"`, `"é😀` + "\u200b" + `"`, `"long long long long"`}[w.IntN(5)])
	case 5, 6:
		w.b.WriteByte('[')
		for i := range w.IntN(4) {
			if i > 0 {
				w.b.WriteByte(',')
			}
			w.value(depth - 1)
		}
		w.b.WriteByte(']')
	default:
		w.b.WriteByte('{')
		var seen []string
		for range w.IntN(6) {
			name := w.name()
			if slices.Contains(seen, strings.ReplaceAll(name, `\u0061`, "a")) && w.IntN(200) > 0 {
				continue
			}
			if len(seen) > 0 {
				w.b.WriteByte(',')
			}
			seen = append(seen, strings.ReplaceAll(name, `\u0061`, "a"))
			w.space()
			w.b.WriteString(`"` + name + `"`)
			w.space()
			w.b.WriteByte(':')
			w.value(depth - 1)
		}
		w.space()
		w.b.WriteByte('}')
	}
	w.space()
}

func TestMadeUp(t *testing.T) {
	specs := []Spec{
		{Fields: []string{"a", "b.a", "b.c.d", "d.e", "e"}},
		{Root: "a", Fields: []string{"b", "a.c", "c.<any>", "d.<any>.a", "d.b.c"}, Captures: []Capture{{Path: "a"}, {Path: "a.a"}, {Path: "b.c", Last: true}, {Path: "x", Last: true}}},
		{Root: "b.a", Fields: []string{"<any>.a"}, Captures: []Capture{{Path: "a.b.c"}}},
		{Captures: []Capture{{Path: "a.a"}, {Path: "é", Last: true}}},
		{Fields: []string{"<any>"}},
	}
	accepted := 0
	for i := range uint64(4000) {
		w := writer{Rand: rand.New(rand.NewPCG(7, i))}
		w.value(1 + int(i%7))
		data := []byte(w.b.String())
		if i%16 != 0 && len(data) < 300 {
			data = append(data, bytes.Repeat([]byte(" "), 300-len(data))...) // not at each place of the window
		}
		spec := specs[i%uint64(len(specs))]
		if _, err := mustCompile(t, spec).Run(bytes.NewReader(data), Limits{}); err == nil {
			accepted++
		}
		differential(t, spec, data)
	}
	if accepted < 3000 {
		t.Errorf("only %d texts were good", accepted)
	}
}

// TestCaptureItem: an array's first item, beside the array itself at the same path.
func TestCaptureItem(t *testing.T) {
	p := mustCompile(t, Spec{Fields: []string{"e"}, Captures: []Capture{{Path: "e"}, {Path: "e", Item: true}, {Path: "e", Last: true}, {Path: "e.m", Item: true}}})
	for _, tc := range []struct{ in, array, item, last, inner string }{
		{`{"e":["a","b"]}`, "[", `"a`, "[", ""},
		{`{"e":[["a"],"b"]}`, "[", `"a`, "[", ""},
		{`{"e":[]}`, "[", "", "[", ""},
		{`{"e":[7]}`, "[", "07", "[", ""},
		{`{"e":"a"}`, `"a`, `"a`, `"a`, ""},
		{`{"e":[{"m":["x"]},{"m":"y"}]}`, "[", "{", "[", `"x`},
		{`{"e":[{"n":1},{"m":"y"}]}`, "[", "{", "[", `"y`},
		{`{"o":{"e":["a"]}}`, "", "", "", ""},
	} {
		for _, whole := range []bool{true, false} {
			var r io.Reader = strings.NewReader(tc.in)
			if !whole {
				r = iotest.OneByteReader(r)
			}
			out, err := p.Run(r, Limits{})
			if err != nil {
				t.Fatalf("%s: %v", tc.in, err)
			}
			for i, want := range []string{tc.array, tc.item, tc.last, tc.inner} {
				got := ""
				if v := out.Captures[i]; v.Found {
					got = string(v.Kind) + v.Text
				}
				if got != want {
					t.Errorf("%s: capture %d is %q, want %q", tc.in, i, got, want)
				}
			}
		}
	}
}
