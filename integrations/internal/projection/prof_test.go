package projection
import ("testing";"bytes";"encoding/json";"strings";"fmt")
func BenchmarkOnlyLinear(b *testing.B){ data := linearPage(b)
	p := mustCompile(b, Spec{Root: issueRoot, Fields: issueFields, Captures: []Capture{
		{Path: "data.viewer.assignedIssues.pageInfo.hasNextPage"},
		{Path: "data.viewer.assignedIssues.pageInfo.endCursor"},
		{Path: "errors.message"},
	}})
	b.SetBytes(int64(len(data)))
 for b.Loop() { run(b,p,data)} }
func BenchmarkOnlyGitHub(b *testing.B){ data := githubPage(b)
	p := mustCompile(b, Spec{Fields: repoFields})
	b.SetBytes(int64(len(data)))
 for b.Loop() { run(b,p,data)} }
func cmp2(b *testing.B, data []byte, p *Projection) {
	compare(b, len(data), []side{{"p", func(){ run(b,p,data)}}, {"Valid", func(){ json.Valid(data)}}})
}
func BenchmarkVar(b *testing.B) {
	p := mustCompile(b, Spec{Fields: repoFields})
	var ind bytes.Buffer
	json.Indent(&ind, githubPage(b), "", "  ")
	b.Run("indent", func(b *testing.B){ cmp2(b, ind.Bytes(), p) })
	cjk := []byte(strings.ReplaceAll(string(githubPage(b)), "api.github.com", "日本語のテキスト、とても長い"))
	b.Run("cjk", func(b *testing.B){ cmp2(b, cjk, p) })
	var m strings.Builder
	m.WriteString("{")
	for i := range 60000 { fmt.Fprintf(&m, `"name%d":{"a":%d,"b":"x"},`, i, i) }
	m.WriteString(`"x":1}`)
	b.Run("many", func(b *testing.B){ cmp2(b, []byte(m.String()), p) })
	b.Run("small", func(b *testing.B){ cmp2(b, []byte(`{"id":1,"full_name":"x","message":"Not Found","documentation_url":"https://docs.github.com/"}`), p) })
	var alt strings.Builder
	alt.WriteString("[")
	for i := range 3000 { if i%3==0 { alt.WriteString(`{"id":1,"x":2,"opt":3,"full_name":"abc","z":4},`) } else if i%3==1 {alt.WriteString(`{"id":1,"x":2,"full_name":"abc","z":4},`) } else {alt.WriteString(`{"x":2,"id":4,"full_name":"abc","z":4},`) } }
	alt.WriteString("{}]")
	b.Run("alternating", func(b *testing.B){ cmp2(b, []byte(alt.String()), p) })
	b.Run("numbers", func(b *testing.B){ cmp2(b, []byte("["+strings.Repeat("12.5,1000,-3,0.25e3,", 10000)+"1]"), p) })
}
