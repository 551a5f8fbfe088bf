package integrations

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/elevenmessenger/connect/integrations/internal/projection"
)

// MaxResult is the size of the largest picked result, in bytes: a sealed message has 64
// KB, of which a hand-back may need four.
const MaxResult = 45056

// The bounds of one answer.
const (
	maxRawBytes     = 16 << 20 // as received
	maxDecodedBytes = 32 << 20 // after decompression
	maxErrorBytes   = 256 << 10
	maxHeaderBytes  = 64 << 10
	maxDepth        = 64
	maxMessage      = 500 // code points of a message that flows back
	maxTries        = 3
	maxRedirects    = 3
)

// An Executor runs operations. Given a manifest, an operation, args and a credential it
// can reach exactly one host, over TLS, on port 443, at a public address. The zero value
// works; the fields are set before the first call and not changed after it. It is safe for
// use by several goroutines, and keeps connections for the next call.
type Executor struct {
	// Timeout bounds an operation with all its tries; zero means 30 seconds.
	Timeout time.Duration
	// UserAgent is sent with every request; empty means "connect".
	UserAgent string

	// ConnectTo sends connections meant for "host:443" to another "address:port", as curl's
	// --connect-to does; the certificate must still be the host's. Only an address named
	// here, and every one where AllowPrivate is set, may be private. Both widen the whole
	// process and are never taken from a manifest.
	ConnectTo map[string]string
	// AllowPrivate lets hosts lead to private addresses, for self-hosted services.
	AllowPrivate bool
	// RootCAs are the authorities whose certificates are taken; nil means the system's.
	RootCAs *x509.CertPool

	once      sync.Once
	transport *http.Transport
}

// Execute binds args and runs the operation with a pasted token, sent as the manifest says.
func (e *Executor) Execute(ctx context.Context, m *Manifest, op string, args Args, token Secret) (*Result, error) {
	return e.ExecuteAs(ctx, m, op, args, Credential{Secret: token})
}

// ExecuteAs binds args and runs the operation with a credential: an OAuth token is sent as
// Bearer whatever the manifest says of pasted ones.
func (e *Executor) ExecuteAs(ctx context.Context, m *Manifest, op string, args Args, cred Credential) (*Result, error) {
	c, err := m.Bind(op, args, cred.Connection)
	if err != nil {
		return nil, err
	}
	return e.Do(ctx, c, cred)
}

// CloseIdleConnections closes the connections that are kept for the next call.
func (e *Executor) CloseIdleConnections() { e.client().CloseIdleConnections() }

func (e *Executor) client() *http.Transport {
	e.once.Do(func() {
		// Not HTTP/2: there the transport itself repeats a request, a write too, when the
		// service resets its stream with PROTOCOL_ERROR (golang.org/issue/42777).
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		e.transport = &http.Transport{
			// No Proxy: a proxy would be another host that is reached.
			DialContext:            e.dial,
			TLSClientConfig:        &tls.Config{RootCAs: e.RootCAs, MinVersion: tls.VersionTLS12},
			Protocols:              &protocols,
			DisableCompression:     true, // decoded here, so that both sizes are counted
			MaxResponseHeaderBytes: maxHeaderBytes,
			MaxIdleConnsPerHost:    16,
			IdleConnTimeout:        90 * time.Second,
			TLSHandshakeTimeout:    10 * time.Second,
			ExpectContinueTimeout:  time.Second,
		}
	})
	return e.transport
}

// Do runs a bound call. Its error is of one of the classes at [Code], whatever happens.
func (e *Executor) Do(ctx context.Context, c *Call, cred Credential) (*Result, error) {
	if c == nil || c.manifest == nil || c.Manifest != c.manifest || c.Op != c.op {
		return nil, &RefusedError{Reason: "the call was not made by Bind, or was changed after it"}
	}
	if err := c.CheckScopes(cred.Scopes); err != nil {
		return nil, err
	}
	timeout := e.Timeout
	if timeout <= 0 {
		timeout = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r := &run{e: e, c: c, cred: cred}
	if err := r.prepare(); err != nil {
		return nil, err
	}
	var last *attempt
	for try := 1; ; try++ {
		a := r.send(ctx)
		a.sentBefore = a.sentBefore || last != nil && last.mayHaveRun
		if a.err == nil {
			a.result.Tries = try
			return a.result, nil
		}
		wait, again := r.again(ctx, a, try)
		if !again {
			return nil, r.fault(a, try)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, r.fault(a, try)
		case <-t.C:
		}
		last = a
		last.mayHaveRun = a.mayHaveRun || a.sentBefore
	}
}

// CheckScopes says before anything is sent what a connection lacks of the scopes that the
// operation needs. Where nobody knows what was granted (nil) nothing is missed.
func (c *Call) CheckScopes(granted []string) error {
	if granted == nil || len(c.Op.Scopes) == 0 {
		return nil
	}
	has := make(map[string]bool)
	if oa := c.Manifest.Auth.OAuth; oa != nil {
		has = oa.ExpandScopes(granted)
	}
	for _, s := range c.Op.Scopes {
		if !has[s] && !slices.Contains(granted, s) {
			return &RefusedError{Reason: fmt.Sprintf("this connection to %s was not granted %q", c.Manifest.Name, s), Hint: "reconnect and allow it"}
		}
	}
	return nil
}

// A run is one call on its way.
type run struct {
	e    *Executor
	c    *Call
	cred Credential

	url    *url.URL
	header http.Header
	body   []byte
	token  *secretForms // once they are needed
}

// leaks says whether text holds the connection's own token.
func (r *run) leaks(text []byte) bool {
	if r.token == nil {
		r.token = r.cred.Secret.forms()
	}
	return r.token.in(text)
}

// An attempt is one request and what came of it.
type attempt struct {
	result     *Result
	err        error
	mayHaveRun bool // the request may have reached the service
	sentBefore bool // an earlier one may have
	repeatable bool // the same request may do better
	readWhole  bool // of its answer nothing is left
	until      time.Time
}

// prepare builds the request, and holds what was built against the manifest once more.
func (r *run) prepare() error {
	c, m, o := r.c, r.c.Manifest, r.c.Op
	path, err := c.path()
	if err != nil {
		return err
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return &RefusedError{Reason: "the address cannot be built"}
	}
	r.url = &url.URL{Scheme: "https", Host: m.Host, Path: plain, RawPath: path, RawQuery: encodePairs(c.pairs(o.query))}
	if u, err := url.Parse(r.url.String()); err != nil || u.Scheme != "https" || u.Host != m.Host || u.User != nil ||
		u.EscapedPath() != path || strings.Count(path, "/") != strings.Count(r.url.EscapedPath(), "/") {
		return &RefusedError{Reason: "the address cannot be built"}
	}
	r.header = http.Header{"Accept": {"application/json"}}
	for _, h := range m.Headers {
		r.header.Set(h.Name, h.Value)
	}
	r.header.Set("Accept-Encoding", "gzip")
	r.header.Set("User-Agent", "connect")
	if r.e.UserAgent != "" {
		r.header.Set("User-Agent", r.e.UserAgent)
	}
	name, value, err := r.cred.header(m)
	if err != nil {
		return err
	}
	r.header.Set(name, value)
	uuid := ""
	if o.Idempotency != nil {
		key := c.IdempotencyKey
		if key == "" {
			key = rand.Text()
		}
		if uuid = uuidFrom(key); o.Idempotency.Header != "" {
			r.header.Set(o.Idempotency.Header, uuid)
		}
	}
	switch {
	case o.BodyJSON != nil:
		r.body = c.jsonBody(uuid)
		r.header.Set("Content-Type", "application/json")
	case o.BodyForm != nil:
		r.body = []byte(encodePairs(c.pairs(o.form)))
		r.header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return nil
}

// send makes one request, with the redirects that are followed.
func (r *run) send(ctx context.Context) *attempt {
	a := &attempt{}
	u := r.url
	for hop := 0; ; hop++ {
		resp, err := r.roundTrip(ctx, u, a)
		if err != nil {
			a.err, a.repeatable = err, true
			return a
		}
		if next := r.redirect(resp, u); next != nil && hop < maxRedirects {
			drop(resp)
			u = next
			continue
		}
		r.read(resp, a)
		return a
	}
}

func (r *run) roundTrip(ctx context.Context, u *url.URL, a *attempt) (*http.Response, error) {
	// Whether anything can have reached the service: the transport itself sends again only
	// what it knows was not sent, and then begins with a connection anew. What carries a key
	// it sends again in any case.
	keyed := r.c.Op.Idempotency != nil && r.c.Op.Idempotency.Header != ""
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) {
			a.sentBefore = a.sentBefore || keyed && a.mayHaveRun
			a.mayHaveRun = false
		},
		GotConn: func(httptrace.GotConnInfo) { a.mayHaveRun = true },
	})
	req := (&http.Request{
		Method: r.c.Op.Method, URL: u, Host: u.Host, Header: r.header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	if r.body != nil {
		req.ContentLength = int64(len(r.body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.body)), nil }
		req.Body, _ = req.GetBody()
	}
	return r.e.client().RoundTrip(req)
}

// redirect returns where a GET is to be asked instead: within the same host only.
func (r *run) redirect(resp *http.Response, from *url.URL) *url.URL {
	switch resp.StatusCode {
	case 301, 302, 303, 307, 308:
	default:
		return nil
	}
	if r.c.Op.Method != "GET" {
		return nil
	}
	to, err := from.Parse(resp.Header.Get("Location"))
	if err != nil || resp.Header.Get("Location") == "" || strings.Contains(resp.Header.Get("Location"), "\\") || to.Scheme != "https" || to.Host != from.Host || to.User != nil {
		return nil
	}
	to.Fragment = ""
	return to
}

// drop ends an answer that is not read, and keeps its connection when little is left that
// is there already.
func drop(resp *http.Response) {
	defer time.AfterFunc(100*time.Millisecond, func() { resp.Body.Close() }).Stop()
	io.CopyN(io.Discard, resp.Body, 16<<10)
	resp.Body.Close()
}

// again says whether and when the call is tried once more.
func (r *run) again(ctx context.Context, a *attempt, try int) (time.Duration, bool) {
	if !a.repeatable || try >= maxTries || ctx.Err() != nil || !r.mayRepeat() {
		return 0, false
	}
	if errors.Is(a.err, errPrivateAddress) {
		return 0, false
	}
	var cert *tls.CertificateVerificationError
	if errors.As(a.err, &cert) {
		return 0, false
	}
	wait := time.Duration(1<<try) * 150 * time.Millisecond
	wait += time.Duration(mathrand.Int64N(int64(wait / 2)))
	if !a.until.IsZero() {
		wait = max(time.Until(a.until), wait)
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait+100*time.Millisecond {
		return 0, false
	}
	return wait, true
}

// mayRepeat says whether a second request can do no harm.
func (r *run) mayRepeat() bool {
	return r.c.Op.Access == Read || r.c.Op.Idempotency != nil && r.c.Op.Idempotency.Header != ""
}

// fault gives the last attempt's error its class.
func (r *run) fault(a *attempt, try int) error {
	service := r.c.Manifest.Name
	write := r.c.Op.Access == Write
	repeated := try > 1 && write
	if Code(a.err) == "" {
		err := &wireError{a.err, a.mayHaveRun}
		if write && (a.mayHaveRun || a.sentBefore) {
			return &UnknownOutcomeError{Service: service, Repeated: repeated, Err: err}
		}
		return &UnreachableError{Service: service, Err: err}
	}
	if !write {
		return a.err
	}
	if u, ok := a.err.(*UnknownOutcomeError); ok {
		u.Repeated = repeated
		return u
	}
	// Under its key the second request is the first one's duplicate: a no to its content
	// holds for both. That it was turned away at the door says nothing of the first.
	pe, no := a.err.(*ProviderError)
	if a.sentBefore && !(no && pe.Status >= 400 && pe.Status < 500 && pe.Status != 409) {
		return &UnknownOutcomeError{Service: service, Repeated: repeated, Err: a.err}
	}
	return a.err
}

// read turns an answer into the attempt's result or error.
func (r *run) read(resp *http.Response, a *attempt) {
	defer func() {
		if a.readWhole {
			resp.Body.Close()
		} else {
			drop(resp)
		}
	}()
	now := time.Now()
	m := r.c.Manifest
	limits := m.rateLimit(resp.Header, now)
	wait := retryAfter(resp.Header, now)
	status := resp.StatusCode
	if status >= 200 && status < 300 {
		a.result, a.err = r.success(resp, a)
		if a.result != nil {
			a.result.Limits = limits
		}
		if _, ok := a.err.(*RateLimitError); ok {
			r.limited(a, limits, wait)
		}
		return
	}
	msg, code := r.errorBody(resp)
	say := ""
	if m.Error != nil {
		say, _ = m.Error.Say.Get(fmt.Sprint(status))
	}
	unauthorised, limited := r.codes(code)
	also403 := m.Limits != nil && m.Limits.Also403 && status == 403 && (limits.Remaining == 0 || !wait.IsZero())
	switch {
	case status == 429 || limited || also403:
		a.err = &RateLimitError{Service: m.Name, Status: status, Message: msg}
		r.limited(a, limits, wait)
		return
	case status == 401 || unauthorised:
		a.err = &UnauthorisedError{Service: m.Name, Status: status, Message: msg}
		return
	}
	a.repeatable = status == 502 || status == 503 || status == 504
	a.until = wait
	pe := &ProviderError{Service: m.Name, Status: status, Message: msg, Say: say}
	if status < 400 {
		pe.Err = errors.New("that is no answer to the request, and it is not followed elsewhere")
	}
	a.err = pe
	// A gateway that failed does not know whether the write went through, and a 303 says
	// that what came of it stands elsewhere (RFC 9110, section 15.4.4).
	if r.c.Op.Access == Write && (status >= 500 && status != 501 && status != 505 || status == 408 || status == 303 || status < 200) {
		a.err = &UnknownOutcomeError{Service: m.Name, Status: status, Message: msg}
	}
}

func (r *run) limited(a *attempt, limits RateLimit, wait time.Time) {
	e := a.err.(*RateLimitError)
	a.mayHaveRun = false // it was turned away, not run
	e.Until = wait
	if wait.IsZero() {
		e.Until = limits.Reset
	}
	a.repeatable = true
	a.until = e.Until
}

// codes says what an error code means to the operation.
func (r *run) codes(code string) (unauthorised, limited bool) {
	if code == "" {
		return false, false
	}
	for _, f := range r.c.Op.Fail {
		unauthorised = unauthorised || slices.Contains(f.Unauthorized, code)
		limited = limited || slices.Contains(f.RateLimited, code)
	}
	return unauthorised, limited
}

// success reads a 2xx answer.
func (r *run) success(resp *http.Response, a *attempt) (*Result, error) {
	o, m := r.c.Op, r.c.Manifest
	status := resp.StatusCode
	res := &Result{JSON: []byte("null"), Size: 4, Status: status}
	if o.Pick.Nothing != "" {
		return res, nil
	}
	// lost is what could not be read of an answer to a request that was accepted.
	lost := func(err error) (*Result, error) {
		if o.Access == Write {
			return nil, &UnknownOutcomeError{Service: m.Name, Status: status, Err: err}
		}
		if Code(err) != "" {
			return nil, err
		}
		return nil, &ProviderError{Service: m.Name, Status: status, Err: err}
	}
	body, err := newBody(resp, maxRawBytes)
	if err != nil {
		var cut *readError
		if errors.As(err, &cut) && o.Access == Read {
			a.repeatable = true
			return nil, cut.Err
		}
		return lost(err)
	}
	out, err := o.projection.Run(body, projection.Limits{MaxBytes: maxDecodedBytes, MaxDepth: maxDepth, MaxOut: MaxResult})
	a.readWhole = err == nil
	var tooLong *projection.LimitError
	var reading *projection.ReadError
	var syntax *projection.SyntaxError
	switch {
	case errors.Is(err, errRawTooLarge) || errors.As(err, &tooLong):
		limit := int64(maxRawBytes)
		if tooLong != nil {
			limit = maxDecodedBytes
		}
		return lost(&TooLargeError{Size: limit, Limit: limit, Arg: r.c.smaller(), Raw: true})
	case errors.As(err, &reading) && !notGzip(err):
		a.repeatable = true
		if o.Access == Write {
			return lost(reading.Err)
		}
		return nil, reading.Err
	case errors.As(err, &syntax):
		// Without the path to the place, since names may be data too.
		return lost(fmt.Errorf("its answer is not the JSON that it should be: %s at byte %d", syntax.Msg, syntax.Offset))
	case err != nil:
		return lost(errors.New("its answer is not the gzip that it is said to be"))
	}
	if err := r.failure(status, out); err != nil {
		return nil, err
	}
	switch out.Root {
	case projection.Absent:
		return lost(fmt.Errorf("its answer has nothing at %q", o.Pick.Root))
	case projection.Scalar:
		return lost(fmt.Errorf("its answer has a single value at %q, not an object or a list", o.Pick.Root))
	}
	if out.Size > MaxResult {
		return lost(&TooLargeError{Size: int64(out.Size), Limit: MaxResult, Arg: r.c.smaller()})
	}
	if r.leaks(out.JSON) {
		return lost(errors.New("its answer holds the connection's own token, so it is withheld"))
	}
	next, why := r.c.nextPage(resp.Header, out)
	if why != "" {
		return lost(errors.New(why))
	}
	if next != nil && r.leaks([]byte(next.Value)) {
		return lost(errors.New("its next page holds the connection's own token, so it is withheld"))
	}
	res.JSON, res.Size, res.Next = out.JSON, out.Size, next
	return res, nil
}

// failure says how a 2xx answer is a failure after all.
func (r *run) failure(status int, out projection.Output) error {
	for i, f := range r.c.Op.Fail {
		at := r.c.Op.captures.fail[i]
		failed := false
		if at.when >= 0 {
			v := out.Captures[at.when]
			failed = v.Found && v.Kind != 'n' && v.Kind != 'f' && !v.Empty
		} else {
			failed = out.Captures[at.unless].Kind != 't'
		}
		if !failed {
			continue
		}
		msg, code := "", ""
		for _, m := range at.messages {
			if msg == "" {
				msg = r.message(out.Captures[m])
			}
		}
		if at.code >= 0 {
			code = out.Captures[at.code].Text
		}
		switch {
		case code != "" && slices.Contains(f.Unauthorized, code):
			return &UnauthorisedError{Service: r.c.Manifest.Name, Status: status, Message: msg}
		case code != "" && slices.Contains(f.RateLimited, code):
			return &RateLimitError{Service: r.c.Manifest.Name, Status: status, Message: msg}
		}
		if r.c.Op.Access == Write && r.succeeded(out) {
			// It says both that it happened and that something went wrong.
			return &UnknownOutcomeError{Service: r.c.Manifest.Name, Status: status, Message: msg}
		}
		return &ProviderError{Service: r.c.Manifest.Name, Status: status, Message: msg}
	}
	return nil
}

// succeeded says whether the answer itself says that the operation happened.
func (r *run) succeeded(out projection.Output) bool {
	for _, at := range r.c.Op.captures.fail {
		if at.unless >= 0 && out.Captures[at.unless].Kind == 't' {
			return true
		}
	}
	return false
}

// errorBody reads what may flow back of an error's body: its message, and the code that
// fail looks at. Whatever else it holds, or whatever it is, stays where it is.
func (r *run) errorBody(resp *http.Response) (msg, code string) {
	p := r.c.Op.errors
	if p.projection == nil {
		return "", ""
	}
	body, err := newBody(resp, maxErrorBytes)
	if err != nil {
		return "", ""
	}
	out, err := p.projection.Run(body, projection.Limits{MaxBytes: maxErrorBytes, MaxDepth: maxDepth})
	if err != nil {
		return "", ""
	}
	for i := range p.messages {
		if v := out.Captures[i]; msg == "" && v.Kind == '"' && !v.Empty {
			msg = r.message(v)
		}
	}
	for _, v := range out.Captures[p.messages:] {
		if code == "" && (v.Kind == '"' || v.Kind == '0') {
			code = v.Text
		}
	}
	return msg, code
}

// message makes a provider's message fit to be shown: one line, nothing hidden, at most
// 500 characters, and never with the token in it.
func (r *run) message(v projection.Value) string {
	if v.Kind != '"' {
		return ""
	}
	if r.leaks([]byte(v.Text)) || v.Cut && r.token.beginIn([]byte(v.Text)) {
		return "its message held the connection's own token, so it is withheld"
	}
	s := strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\r' || c == '\t':
			return ' '
		case !projection.Visible(c):
			return utf8.RuneError
		}
		return c
	}, v.Text)
	return cut(strings.TrimSpace(s), maxMessage)
}

// smaller returns the arg that would make the result smaller: one that is a number, may
// be left out, and does not name the page.
func (c *Call) smaller() string {
	for _, a := range c.Op.Args {
		if a.Kind() == "integer" && !a.Required() && a.Connection == "" && a.Money == nil && (c.Op.Next == nil || a.Name != c.Op.Next.Arg) {
			return a.Name
		}
	}
	return ""
}

var errRawTooLarge = errors.New("the answer is too large")

// A rawReader counts what is received and stops at its limit.
type rawReader struct {
	r    io.Reader
	left int64
}

func (r *rawReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		// One byte more tells an answer of exactly the limit from a longer one.
		var one [1]byte
		n, err := r.r.Read(one[:])
		if n > 0 {
			return 0, errRawTooLarge
		}
		return 0, err
	}
	if int64(len(p)) > r.left {
		p = p[:r.left]
	}
	n, err := r.r.Read(p)
	r.left -= int64(n)
	return n, err
}

// A readError is a connection that broke before an answer began to be read.
type readError struct{ Err error }

func (e *readError) Error() string { return e.Err.Error() }
func (e *readError) Unwrap() error { return e.Err }

// newBody returns an answer's body decoded, with its raw bytes counted.
func newBody(resp *http.Response, limit int64) (io.Reader, error) {
	raw := &rawReader{resp.Body, limit}
	switch enc := strings.ToLower(strings.TrimSpace(resp.Header.Get("Content-Encoding"))); enc {
	case "", "identity":
		return raw, nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(raw)
		switch {
		case err == nil:
			return z, nil
		case notGzip(err) || errors.Is(err, io.EOF):
			return nil, errors.New("its answer is not the gzip that it is said to be")
		}
		return nil, &readError{err}
	}
	return nil, errors.New("its answer is in an encoding that was not asked for")
}

// notGzip tells what is wrong with the bytes from a connection that broke.
func notGzip(err error) bool {
	var corrupt flate.CorruptInputError
	return errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) || errors.As(err, &corrupt)
}

// A wireError says in our words why no answer came. Those of the transport repeat what
// the other side wrote: header lines, names in a certificate.
type wireError struct {
	err       error
	connected bool
}

func (e *wireError) Error() string {
	var cert *tls.CertificateVerificationError
	var dns *net.DNSError
	var dial *net.OpError
	switch {
	case errors.Is(e.err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.Is(e.err, context.Canceled):
		return "the call was ended"
	case e.connected:
		return "the connection broke before a whole answer came"
	case errors.Is(e.err, errPrivateAddress):
		return errPrivateAddress.Error()
	case errors.As(e.err, &cert):
		return "its certificate is not one for this host from an authority that is trusted"
	case errors.As(e.err, &dns):
		return "its name was not found"
	case errors.As(e.err, &dial) && dial.Op == "dial":
		return "there is no connection: " + dial.Err.Error()
	}
	return "no TLS connection came about"
}

func (e *wireError) Unwrap() error { return e.err }
