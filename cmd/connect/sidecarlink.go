package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance/client"
	"github.com/elevenmessenger/connect/sidecar"
	"github.com/elevenmessenger/connect/sidecar/local"
)

// Times of the way to an instance.
const (
	publishEvery = time.Hour        // also resends hand-backs
	tryFor       = 10 * time.Minute // to get one message handled, before it is passed over
	longestRest  = time.Minute      // between two tries
	standbyPoll  = time.Second
)

// A sidecarLink is one bot's way to an instance: it receives what is posted to the bot, has
// the sidecar handle it, and posts the replies.
type sidecarLink struct {
	name     string
	id       *custody.Identity
	core     *sidecar.Sidecar
	db       *sidecarDB
	dir      string
	instance string // its origin
	options  client.Options
	group    string
	log      *slog.Logger
	room     chan struct{} // one token a message that is being handled, of all bots

	mu     sync.Mutex
	status local.Link
}

func (l *sidecarLink) link() local.Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// is notes whether the instance answers.
func (l *sidecarLink) is(connected, standby bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.status
	if s.Connected == connected && s.Standby == standby && s.Since != 0 {
		return
	}
	s.Bot, s.Connected, s.Standby, s.Since = l.name, connected, standby, time.Now().Unix()
	l.log.Info("the way to the instance", "bot", l.name, "connected", connected, "standby", standby)
}

func (l *sidecarLink) reached(cursor int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Cursor = cursor
}

// run receives until ctx ends, and returns when what was received is answered, or work ends.
// An error is one that stands at the start: the instance does not let the bot in.
func (l *sidecarLink) run(ctx, work context.Context) error {
	l.is(false, true)
	lock, err := l.lead(ctx)
	if err != nil {
		return err
	}
	if lock == nil {
		return nil // stopped while another process had the link
	}
	defer lock.Close()
	l.is(false, false)
	c, err := l.dial(ctx)
	if c == nil || err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { defer close(done); l.tend(ctx, c) }()
	var handling sync.WaitGroup
	for try := 0; ctx.Err() == nil; try++ {
		began := time.Now()
		err := l.receive(ctx, work, c, &handling)
		if ctx.Err() != nil {
			break
		}
		l.is(false, false)
		l.log.Warn("the instance sends nothing", "bot", l.name, "error", err)
		if time.Since(began) > time.Minute {
			try = 0
		}
		rest(ctx, try)
	}
	handling.Wait()
	<-done
	leaving, cancel := context.WithTimeout(work, 3*time.Second)
	defer cancel()
	if err := c.Logout(leaving); err != nil {
		l.log.Info("the session was not ended", "bot", l.name, "error", err)
	}
	l.is(false, false)
	return nil
}

// lead waits until this process alone has the link. Of a folder's processes one receives,
// and another takes over when it ends. It returns nil where ctx ends first.
func (l *sidecarLink) lead(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(l.dir, sidecarBots, l.name+".link"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the sidecar's folder: %w", withoutPath(err))
	}
	for {
		got, err := tryLock(f, false)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("the sidecar's folder cannot be locked: %w", err)
		}
		if got {
			return f, nil
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, nil
		case <-time.After(standbyPoll):
		}
	}
}

// dial logs in and publishes. While the instance cannot be reached it tries again; what else
// is wrong is said.
func (l *sidecarLink) dial(ctx context.Context) (*client.Client, error) {
	for try := 0; ; try++ {
		c, err := client.Dial(ctx, l.instance, l.id, l.options)
		if err == nil {
			l.is(true, false)
			return c, nil
		}
		if ctx.Err() != nil {
			return nil, nil
		}
		if !passes(err) {
			return nil, fmt.Errorf("the instance does not let %s in: %w", l.name, err)
		}
		l.log.Warn("the instance cannot be reached", "bot", l.name, "error", err)
		rest(ctx, try)
	}
}

// passes says whether another try may go better.
func passes(err error) bool {
	var e *client.Error
	if errors.As(err, &e) {
		return e.Status == 429 || e.Status >= 500 && !errors.Is(err, client.ErrQuota)
	}
	return errors.Is(err, client.ErrUnreachable) || errors.Is(err, client.ErrSession)
}

// rest waits a random part of a time that doubles.
func rest(ctx context.Context, try int) {
	t := time.NewTimer(100*time.Millisecond + rand.N(min(500*time.Millisecond<<min(try, 10), longestRest)))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// tend publishes the bot's record and sends its hand-backs again, at once and every hour.
func (l *sidecarLink) tend(ctx context.Context, c *client.Client) {
	for try := 0; ctx.Err() == nil; {
		err := l.publish(ctx, c)
		if err == nil {
			err = l.resend(ctx, c)
		}
		if err != nil {
			if ctx.Err() == nil {
				l.log.Warn("the bot's record, or what waits for members, is not at the instance", "bot", l.name, "error", err)
			}
			rest(ctx, try+4)
			try++
			continue
		}
		try = 0
		select {
		case <-ctx.Done():
		case <-time.After(publishEvery - rand.N(time.Minute)):
		}
	}
}

func (l *sidecarLink) publish(ctx context.Context, c *client.Client) error {
	if err := c.SetGroup(ctx, l.group); err != nil {
		return err
	}
	for _, r := range l.core.Records() {
		if r.Key.ID() == l.id.ID() {
			return c.PublishDay(ctx, r.Day, time.Unix(r.DayUntil, 0))
		}
	}
	return errors.New("there is no key of the day")
}

// resend posts the hand-backs that wait for their members. Within a day the instance takes
// each once, under the same id.
func (l *sidecarLink) resend(ctx context.Context, c *client.Client) error {
	waiting, err := l.core.Waiting(ctx)
	if err != nil {
		return err
	}
	for _, e := range waiting {
		if e.From != l.id.ID() || e.Space != c.Space() {
			continue
		}
		_, err := c.Post(ctx, replyID(0, e.CT, 0), e, time.Time{})
		if err != nil && !errors.Is(err, client.ErrTaken) {
			if passes(err) {
				return err
			}
			l.log.Warn("a hand-back cannot be posted; it stays in the outbox", "bot", l.name, "member", e.To, "error", err)
		}
	}
	return nil
}

// replyID is the id under which a reply is posted: a message that is delivered again after a
// crash gets no second answer.
func replyID(seq int64, what []byte, n int) string {
	h := sha256.New()
	h.Write([]byte("connect/v1 reply"))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(seq)))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
	h.Write(what)
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
}

// receive hands each message to a goroutine of its own, and keeps the cursor behind the
// first one that is not answered.
func (l *sidecarLink) receive(ctx, work context.Context, c *client.Client, handling *sync.WaitGroup) error {
	handling.Wait() // what an earlier stream left: it would be handled twice at once
	bot := l.id.ID()
	start, err := l.db.cursor(ctx, bot, l.instance)
	if err != nil {
		return err
	}
	l.reached(start)
	p := &progress{keep: func(seq int64) {
		if err := l.db.setCursor(work, bot, l.instance, seq); err != nil {
			l.log.Error("how far the log was handled is not kept; after a restart it comes again", "bot", l.name, "error", err)
			return
		}
		l.reached(seq)
	}}
	err = c.Receive(ctx, start, func(ctx context.Context, m *client.Message) error {
		l.is(true, false)
		switch m.Envelope.Purpose {
		case custody.PurposeOp, custody.PurposeRevoke, custody.PurposeAck, custody.PurposeEnd:
		default:
			p.begin(m.Seq)
			p.end(m.Seq) // for the bot itself: a say, say
			return nil
		}
		select {
		case l.room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		p.begin(m.Seq)
		handling.Go(func() {
			defer func() { <-l.room }()
			if l.message(ctx, work, c, m) {
				p.end(m.Seq)
			}
		})
		return nil
	})
	if errors.Is(err, client.ErrCursor) {
		l.log.Warn("the instance's store is older than what was read from it; its log is read from the beginning", "bot", l.name)
		handling.Wait() // each keeps how far it came
		return errors.Join(err, l.db.setCursor(work, bot, l.instance, 0))
	}
	return err
}

// A progress knows which messages are being handled, and keeps the number up to which all
// are.
type progress struct {
	keep func(seq int64)

	mu   sync.Mutex
	open []int64 // as they came
	done map[int64]bool
}

func (p *progress) begin(seq int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = append(p.open, seq)
}

func (p *progress) end(seq int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done = make(map[int64]bool)
	}
	p.done[seq] = true
	last := int64(0)
	for len(p.open) > 0 && p.done[p.open[0]] {
		last = p.open[0]
		delete(p.done, last)
		p.open = p.open[1:]
	}
	if last > 0 {
		p.keep(last) // within the lock: the cursor never goes back
	}
}

// message handles one message and posts its replies. It returns false where that is to be
// done again after the next start. ctx ends when nothing more is taken, work when nothing
// more is finished.
func (l *sidecarLink) message(ctx, work context.Context, c *client.Client, m *client.Message) bool {
	end := time.Now().Add(tryFor)
	for try := 0; ; try++ {
		replies, err := l.handle(work, c, m)
		if err == nil {
			return l.post(ctx, work, c, m, replies)
		}
		switch {
		case errors.Is(err, sidecar.ErrStopping) || work.Err() != nil:
			return false
		case unanswerable(err):
			return true // the sidecar's log has it
		case ctx.Err() != nil:
			return false
		case time.Now().After(end):
			l.log.Error("a message is passed over", "bot", l.name, "error", err)
			return true
		}
		l.log.Warn("a message is tried again", "bot", l.name, "error", err)
		rest(ctx, try)
	}
}

// unanswerable says whether a message will never have an answer.
func unanswerable(err error) bool {
	for _, never := range []error{custody.ErrMalformed, custody.ErrTooBig, custody.ErrVersion, custody.ErrForged, custody.ErrNotMine,
		custody.ErrDay, custody.ErrOpen, sidecar.ErrPurpose, client.ErrNotFound} {
		if errors.Is(err, never) {
			return true
		}
	}
	return false
}

// handle has the sidecar handle a message of a member who is taken, and tells another so.
func (l *sidecarLink) handle(ctx context.Context, c *client.Client, m *client.Message) ([]*custody.Envelope, error) {
	e := m.Envelope
	author, err := l.author(ctx, c, e.From)
	if err != nil {
		return nil, err
	}
	if author.State != memberTaken {
		return l.held(author, e)
	}
	data, err := e.Marshal()
	if err != nil {
		return nil, err
	}
	return l.core.Handle(ctx, sidecar.Delivery{Space: e.Space, Thread: e.Thread, Author: author.Key, Data: data})
}

// author returns a member as it was first seen.
func (l *sidecarLink) author(ctx context.Context, c *client.Client, id custody.KeyID) (*pinned, error) {
	p, err := l.db.member(ctx, id)
	if p != nil || err != nil {
		return p, err
	}
	m, err := c.Member(ctx, id)
	if err != nil {
		return nil, err
	}
	return l.db.pin(ctx, m.Key, m.Name, time.Now())
}

// held answers a member whose key is not taken. Nothing of the message is opened.
func (l *sidecarLink) held(p *pinned, e *custody.Envelope) ([]*custody.Envelope, error) {
	l.log.Warn("a member's key is held: another one came under that name before; compare fingerprints, then: connect sidecar trust KEY", "bot", l.name, "key", p.ID)
	if e.Purpose != custody.PurposeOp && e.Purpose != custody.PurposeRevoke {
		return nil, nil
	}
	r := &custody.Result{V: 2, ID: e.Op, Error: &custody.ResultError{Code: "refused",
		Message: "this bot knows another key under your name; ask whoever runs it to compare fingerprints with you"}}
	return l.id.SealResult(p.Key, custody.Header{Space: e.Space, Thread: e.Thread, Op: e.Op}, r)
}

// post sends the replies in their order. It returns false where that is to be done again.
func (l *sidecarLink) post(ctx, work context.Context, c *client.Client, m *client.Message, replies []*custody.Envelope) bool {
	for n, e := range replies {
		for try := 0; ; try++ {
			_, err := c.Post(work, replyID(m.Seq, m.Envelope.CT, n), e, time.Time{})
			if err == nil || errors.Is(err, client.ErrTaken) { // before a crash
				break
			}
			if work.Err() != nil {
				return false
			}
			if !passes(err) {
				l.log.Warn("a reply is not taken by the instance", "bot", l.name, "purpose", string(e.Purpose), "error", err)
				break
			}
			if ctx.Err() != nil && try > 3 {
				return false // the instance is away, and so are we; it is answered after the next start
			}
			l.is(false, false)
			rest(work, try)
		}
	}
	return true
}
