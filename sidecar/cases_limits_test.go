package sidecar

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
)

// Clock.

var _ = reported("case_029", func(t *testing.T) { // the skew with the wrong sign
	for _, x := range []struct {
		left      time.Duration
		redeemed  int
		keyStays  bool
		whenAsked time.Duration
	}{
		{left: -5 * time.Minute, redeemed: 1},
		{left: 10 * time.Second, redeemed: 1},
		{left: 59 * time.Second, redeemed: 1},
		{left: 100 * time.Second, redeemed: 0},
		{left: 100 * time.Second, redeemed: 1, whenAsked: 45 * time.Second},
		{left: time.Hour, redeemed: 0},
	} {
		s, _, _ := renewing(t, "github")
		o := s.order(s.connection("github", "read", x.left), "whoami", `{}`)
		s.now.forward(x.whenAsked)
		s.want(t, s.send(o), "ok", 1, x.redeemed)
	}
})

var _ = reported("case_031", func(t *testing.T) { // a local clock that is two hours off
	for _, off := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		s, c, _ := renewing(t, "github")
		s.now.forward(off)
		s.Sidecar.started = s.Sidecar.started.Add(-3 * time.Hour)
		c.ExpiresAt = s.now.now().Unix()
		out := s.send(s.order(c, "whoami", `{}`))
		s.want(t, out, "ok", 1, 1)
		// The end is counted from receipt, by this clock: it is renewed once, not at every call.
		next := s.take(c, out)
		if d := next.ExpiresAt - s.now.now().Unix(); d < 3500 || d > 3600 {
			t.Errorf("it ends in %d s", d)
		}
		for range 5 {
			s.send(s.order(next, "whoami", `{}`))
			s.now.forward(time.Minute)
		}
		s.want(t, s.send(s.order(next, "whoami", `{}`)), "ok", 7, 1)
	}
})

// Temporary and dead.

var _ = reported("case_045", func(t *testing.T) { // any failure ends the connection
	for _, x := range []struct {
		name   string
		status int
		body   string
		want   string
	}{
		{"an outage", 503, `{"class":"temporary","code":"server"}`, custody.CodeTemporary},
		{"nobody at the provider", 503, `{"class":"temporary","code":"unreachable"}`, custody.CodeTemporary},
		{"the operator's secret", 502, `{"class":"misconfigured","code":"invalid_client"}`, custody.CodeMisconfigured},
		{"the instance's token", 401, `{"error":"unauthorized"}`, custody.CodeMisconfigured},
		{"a clock", 401, `{"error":"clock","off_s":900}`, custody.CodeMisconfigured},
		{"the broker's own limit", 429, `{"class":"temporary","code":"too_many","retry_after":5}`, custody.CodeTemporary},
		{"a new client", 503, `{"class":"temporary","code":"client_changed"}`, custody.CodeTemporary},
		{"dead", 409, `{"class":"dead","code":"bad_refresh_token"}`, custody.CodeReconnect},
	} {
		s, c, order := renewing(t, "github")
		s.refreshes(func(w http.ResponseWriter, n int, _ string) *custody.RefreshAnswer {
			if n == 1 {
				return says(w, x.status, x.body)
			}
			return &custody.RefreshAnswer{Secret: secret("at2-fake"), Refresh: secret("rt1.k.fake2"), ExpiresIn: 3600}
		})
		out := s.send(order())
		s.want(t, out, x.want, 0, 1)
		if x.want == custody.CodeTemporary && out.Error.RetryAfter < 1 {
			t.Errorf("%s: no word of when", x.name)
		}
		if x.want == custody.CodeReconnect {
			continue
		}
		// When it has passed, the same connection goes on.
		s.now.forward(15 * time.Minute)
		c.ExpiresAt += 15 * 60
		out = s.send(s.order(c, "whoami", `{}`))
		s.want(t, out, "ok", 1, 2)
		s.take(c, out)
		if t.Failed() {
			t.Fatal(x.name)
		}
	}
	// Nobody listens there, or he hangs up before anything was said: nothing was sent.
	for _, hangsUp := range []bool{false, true} {
		s, c, _ := renewing(t, "github")
		addr := "127.0.0.1:1"
		if hangsUp {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					conn.Close()
				}
			}()
			addr = l.Addr().String()
		}
		c.Broker = "https://" + addr
		s.brokers[c.Broker] = &Broker{Origin: c.Broker, Token: secret("instance-token-fake"), Client: s.broker.client()}
		out := s.send(s.order(c, "whoami", `{}`))
		s.want(t, out, custody.CodeTemporary, 0, 0)
		s.brokers[c.Broker] = s.brokers[s.broker.URL] // it is back
		s.now.forward(time.Minute)
		c.ExpiresAt += 60
		s.want(t, s.send(s.order(c, "whoami", `{}`)), "ok", 1, 1)
	}
})

var _ = reported("case_047", func(t *testing.T) { // a bare 502 for everything
	for _, x := range []struct {
		body, want string
	}{{`{"class":"dead","code":"invalid_grant"}`, custody.CodeReconnect}, {`{"class":"misconfigured"}`, custody.CodeMisconfigured}, {`{"class":"temporary"}`, custody.CodeTemporary}} {
		for _, status := range []int{409, 502, 503, 500} { // the words count, not the status
			s, _, order := renewing(t, "github")
			s.refreshes(func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer { return says(w, status, x.body) })
			s.want(t, s.send(order()), x.want, 0, 1)
		}
	}
})

var _ = reported("case_049", func(t *testing.T) { // a dead token is tried for ever, since the code is on no list
	s, c, _ := renewing(t, "github")
	s.refreshes(func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer {
		return says(w, 503, `{"class":"temporary","code":"unknown"}`)
	})
	var last time.Duration
	for i := range unknownMax {
		c.ExpiresAt = s.now.now().Unix()
		out := s.send(s.order(c, "whoami", `{}`))
		want := custody.CodeTemporary
		if i == unknownMax-1 {
			want = custody.CodeReconnect
		}
		s.want(t, out, want, 0, i+1)
		// Every two seconds in between: nobody is asked.
		for range 3 {
			s.now.forward(500 * time.Millisecond)
			s.want(t, s.send(s.order(c, "whoami", `{}`)), want, 0, i+1)
		}
		wait := time.Duration(out.Error.RetryAfter) * time.Second
		if want == custody.CodeTemporary && wait < last {
			t.Errorf("%d: it waits %s after %s", i, wait, last)
		}
		last = wait
		s.now.forward(max(wait, time.Second))
	}
	// Another refusal in between begins the count anew.
	n, c, _ := renewing(t, "github")
	n.refreshes(func(w http.ResponseWriter, i int, _ string) *custody.RefreshAnswer {
		if i == unknownMax-1 {
			return says(w, 503, `{"class":"temporary","code":"server"}`)
		}
		return says(w, 503, `{"class":"temporary","code":"unknown"}`)
	})
	for i := range unknownMax + 2 {
		c.ExpiresAt = n.now.now().Unix()
		n.want(t, n.send(n.order(c, "whoami", `{}`)), custody.CodeTemporary, 0, i+1)
		n.now.forward(20 * time.Minute)
	}
})

var _ = reported("case_051", func(t *testing.T) { // a token of another app is shown as expired
	s, _, order := renewing(t, "hubspot")
	s.refreshes(func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer {
		return says(w, 502, `{"class":"misconfigured","code":"BAD_REFRESH_TOKEN"}`)
	})
	out := s.send(order())
	s.want(t, out, custody.CodeMisconfigured, 0, 1)
	if !strings.Contains(out.Error.Message, "app") || !strings.Contains(out.Error.Message, "BAD_REFRESH_TOKEN") {
		t.Errorf("it says: %s", out.Error.Message)
	}
})

// 429 and storms.

// waits lets the broker's first answer be one that asks to wait, and holds how long the
// sidecar leaves the token alone.
func waits(t *testing.T, answer http.HandlerFunc, least, most time.Duration) {
	t.Helper()
	s, c, _ := renewing(t, "github")
	s.refreshes(func(w http.ResponseWriter, n int, _ string) *custody.RefreshAnswer {
		if n == 1 {
			answer(w, nil)
			return nil
		}
		return &custody.RefreshAnswer{Secret: secret("at2-fake"), Refresh: secret("rt1.k.fake2"), ExpiresIn: 3600}
	})
	ask := func() outcome {
		c.ExpiresAt = s.now.now().Unix()
		return s.send(s.order(c, "whoami", `{}`))
	}
	out := ask()
	s.want(t, out, custody.CodeTemporary, 0, 1)
	if d := time.Duration(out.Error.RetryAfter) * time.Second; d < least || d > most+time.Second {
		t.Errorf("it is to be tried again after %s, want %s to %s", d, least, most)
	}
	for range 5 {
		s.want(t, ask(), custody.CodeTemporary, 0, 1)
	}
	s.now.forward(least - 5*time.Second)
	out = ask()
	s.want(t, out, custody.CodeTemporary, 0, 1)
	if d := time.Duration(out.Error.RetryAfter) * time.Second; d > most-least+6*time.Second {
		t.Errorf("it counts down to %s", d)
	}
	s.now.forward(most - least + 6*time.Second)
	s.want(t, ask(), "ok", 1, 2)
}

func withRetryAfter(status int, value, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", value)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		w.Write([]byte(body))
	}
}

var _ = reported("case_053", func(t *testing.T) { // a tight loop; Retry-After is ignored
	waits(t, jsonAnswer(429, `{"class":"temporary","code":"rate_limited","retry_after":30}`), 30*time.Second, 30*time.Second)
	waits(t, jsonAnswer(429, `{"class":"temporary","code":"rate_limited","retry_after":999999999}`), time.Hour, time.Hour) // capped
	waits(t, jsonAnswer(429, `{"class":"temporary","code":"rate_limited","retry_after":-7}`), 5*time.Second, 7*time.Second)
	waits(t, jsonAnswer(503, `{"class":"temporary"}`), 5*time.Second, 7*time.Second) // nobody said: some seconds, jittered
	s, _, order := renewing(t, "github")
	s.refreshes(func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer {
		return says(w, 429, `{"class":"temporary","code":"rate_limited","retry_after":30}`)
	})
	if out := s.send(order()); !strings.Contains(out.Error.Message, "GitHub asks to wait") {
		t.Errorf("it says: %s", out.Error.Message)
	}
	// The waits differ from token to token, and double.
	seen := make(map[time.Duration]bool)
	var r rests
	for i := range 50 {
		id := strconv.Itoa(i)
		f := r.put(id, s.now.now(), &BrokerError{Class: Temporary}, fail(custody.CodeTemporary, ""))
		seen[f.retryAfter] = true
		g := r.put(id, s.now.now(), &BrokerError{Class: Temporary}, fail(custody.CodeTemporary, ""))
		if f.retryAfter < backoffFirst || f.retryAfter > backoffFirst*5/4 || g.retryAfter < 2*backoffFirst || g.retryAfter > 2*backoffFirst*5/4 {
			t.Errorf("%s, then %s", f.retryAfter, g.retryAfter)
		}
	}
	if len(seen) < 40 {
		t.Errorf("%d different waits of 50", len(seen))
	}
	for range 40 {
		if f := r.put("0", s.now.now(), &BrokerError{Class: Temporary}, fail(custody.CodeTemporary, "")); f.retryAfter > backoffMax*5/4 {
			t.Errorf("it waits %s", f.retryAfter)
		}
	}
})

var _ = reported("case_055", func(t *testing.T) { // a flat wait instead of the server's own
	// A gateway's own words, JSON or not, in seconds or as a date.
	waits(t, withRetryAfter(429, "90", "text/html", "<h1>Too many requests</h1>"), 90*time.Second, 90*time.Second)
	waits(t, withRetryAfter(429, "90", "application/json", `{"message":"Too Many Requests"}`), 90*time.Second, 90*time.Second)
	date := time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)
	waits(t, withRetryAfter(429, date, "text/html", "<h1>Too many requests</h1>"), 85*time.Second, 91*time.Second)
	waits(t, withRetryAfter(429, "9999999999999999999999", "text/html", ""), 5*time.Second, 7*time.Second)
	waits(t, withRetryAfter(429, "soon", "text/html", ""), 5*time.Second, 7*time.Second)
	// The broker's own words count before a header.
	waits(t, withRetryAfter(429, "7", "application/json", `{"class":"temporary","code":"rate_limited","retry_after":90}`), 90*time.Second, 90*time.Second)
})

var _ = reported("case_057", func(t *testing.T) { // a limit comes as 403 with HTML
	waits(t, withRetryAfter(403, "", "text/html", "<h1>Rate limit</h1>"), 5*time.Second, 7*time.Second)
})
