package integrations

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"
)

// thingsPage is a list of at least size bytes, of things with eight fields that are picked
// and many more, links of them.
func thingsPage(size, links int) (page []byte) {
	page = []byte(`{"data":[`)
	for i := 0; len(page) < size; i++ {
		if i > 0 {
			page = append(page, ',')
		}
		page = fmt.Appendf(page, `{"id":%d,"node_id":"MDEwOlJlcG9zaXRvcnkx%08d","name":"thing-%d","full_name":"someone/thing-%d","private":false,`+
			`"owner":{"login":"someone","id":1,"type":"User","site_admin":false,"url":"https://api.example.com/users/someone"},`+
			`"html_url":"https://example.com/someone/thing-%d","description":"A thing that stands for many others","fork":false,`, 1000000+i, i, i, i, i)
		for j := range links {
			page = fmt.Appendf(page, `"link_%d_url":"https://api.example.com/things/someone/thing-%d/link_%d{/more}",`, j, i, j)
		}
		page = fmt.Appendf(page, `"created_at":"2026-01-26T19:01:12Z","pushed_at":"2026-11-26T19:14:43Z","size":%d,"stars":80,"language":null,"topics":["a","b"],"default_branch":"main","open_issues_count":%d}`, 100+i, i)
	}
	return append(page, `],"has_more":false}`...)
}

const opThings = `"things": {"title": "Things", "access": "read", "method": "GET", "path": "/things/{owner}",
	"args": {"owner": {"max": 39}, "limit": {"type": "integer", "default": 100}, "after": {"type": "id", "optional": true}},
	"query": {"limit": "{limit}", "after": "{after}"},
	"pick": {"root": "data", "fields": ["id", "full_name", "private", "html_url", "description", "default_branch", "open_issues_count", "pushed_at"]},
	"next": {"style": "last", "arg": "after", "field": "id", "more": "has_more"}}`

// BenchmarkOperation runs a whole operation beside a bare HTTP call of the same answer,
// which it reads and drops. Both keep their connection; they take turns, so that what
// else the machine does hits both.
func BenchmarkOperation(b *testing.B) {
	for _, size := range []struct {
		name         string
		bytes, links int
		goal         float64
	}{{"2KB", 2000, 2, 1.5}, {"500KB", 500_000, 60, 2.2}} {
		b.Run(size.name, func(b *testing.B) {
			page := thingsPage(size.bytes, size.links)
			b.Logf("a page of %d bytes", len(page))
			p := newPeer(b, nil)
			p.handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Write(page)
			})
			m := service(b, opThings)
			args := Args{"owner": "someone"}
			operation := func() {
				res, err := p.Execute(background, m, "things", args, testSecret)
				if err != nil || bytes.Count(res.JSON, []byte(`"id":`)) == 0 {
					b.Fatal(res, err)
				}
			}
			bare := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: testAuthority().pool, ServerName: peerHost}}}
			defer bare.CloseIdleConnections()
			url := "https://" + p.addr + "/things/someone?limit=100"
			call := func() {
				req, err := http.NewRequest("GET", url, nil)
				if err != nil {
					b.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+testToken)
				resp, err := bare.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil || n != int64(len(page)) {
					b.Fatal(n, err)
				}
			}
			var ours, theirs []time.Duration
			timed := func(times *[]time.Duration, f func()) {
				start := time.Now()
				f()
				*times = append(*times, time.Since(start))
			}
			for range 20 { // connections, pools
				operation()
				call()
			}
			b.ReportAllocs()
			for b.Loop() {
				timed(&ours, operation)
				timed(&theirs, call)
				p.mu.Lock()
				p.seen = nil
				p.mu.Unlock()
			}
			p50 := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2].Nanoseconds()) }
			ratio := p50(ours) / p50(theirs)
			b.ReportMetric(p50(ours)/1e3, "op-p50-µs")
			b.ReportMetric(p50(theirs)/1e3, "bare-p50-µs")
			b.ReportMetric(ratio, "x-bare-p50")
			b.ReportMetric(size.goal, "x-goal")
			b.ReportMetric(0, "ns/op") // it would be that of both together
		})
	}
}
