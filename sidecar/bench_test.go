package sidecar

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// page is a list answer of about n bytes, a hundred issues at most.
func page(n int) string {
	var b strings.Builder
	b.WriteString("[")
	for i := 0; b.Len() < n; i++ {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, `{"number":%d,"title":"An issue with a title of some length","state":"open","html_url":"https://github.com/golang/go/issues/%d","user":{"login":"gopher","id":7,"avatar_url":"https://avatars.example/u/7","gravatar_id":""},"labels":[],"comments":3,"created_at":"2026-11-02T10:00:00Z","body":%q}`, i, i, strings.Repeat("words and words ", max(20, n/1700)))
	}
	b.WriteString("]")
	return b.String()
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkOp compares a whole connect.op for a read with bare calls to the same server over
// TLS: on a connection that is kept, and on a new one. The three take turns; what is printed
// is the ratio of medians.
func BenchmarkOp(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"2KB", 1 << 11}, {"500KB", 500_000}} {
		b.Run(size.name, func(b *testing.B) {
			s := newStage(b)
			body := page(size.n)
			s.provider.answer(jsonAnswer(200, body))
			c := s.connection("github", integrations.Read, 0)
			op, args := "list_issues", `{"owner":"golang","repo":"go"}`
			if size.n > 1<<16 {
				args = `{"owner":"golang","repo":"go","per_page":100}`
			}
			bare := func(keep bool) time.Duration {
				client := s.provider.Client()
				tr := client.Transport.(*http.Transport)
				tr.DisableKeepAlives = false
				if !keep {
					tr.CloseIdleConnections()
				}
				start := time.Now()
				req, _ := http.NewRequest("GET", s.provider.URL+"/repos/golang/go/issues", nil)
				req.Header.Set("Authorization", "Bearer at1-fake")
				resp, err := client.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					b.Fatal(err)
				}
				resp.Body.Close()
				return time.Since(start)
			}
			var whole, kept, fresh []time.Duration
			one := func() {
				d := s.delivery(s.order(c, op, args))
				start := time.Now()
				all, err := s.Handle(context.Background(), d)
				whole = append(whole, time.Since(start))
				if err != nil || len(all) != 1 {
					b.Fatal(err)
				}
				if len(whole) == 1 {
					if out := s.open(s.ada, all); out.code() != "ok" {
						b.Fatalf("%s: %+v", out.code(), out.Error)
					}
				}
				kept = append(kept, bare(true))
				fresh = append(fresh, bare(false))
				bare(true)
			}
			for range 20 {
				one() // connections are made, keys of the pair derived
			}
			whole, kept, fresh = nil, nil, nil
			for range max(b.N, 50) {
				one()
			}
			w, k, f := median(whole), median(kept), median(fresh)
			b.ReportMetric(float64(w.Microseconds()), "µs/op-whole")
			b.ReportMetric(float64(w)/float64(k), "x-kept")
			b.ReportMetric(float64(w)/float64(f), "x-new-conn")
		})
	}
}
