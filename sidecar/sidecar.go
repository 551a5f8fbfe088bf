package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A Config says what a sidecar is.
type Config struct {
	Bots     []*custody.Identity    // whose device it is; at least one
	Registry *integrations.Registry // nil is the built-in one
	Executor *integrations.Executor // nil is one of its own
	Brokers  []*Broker              // whose wrapped refresh tokens it may have redeemed
	Dir      string                 // its folder, which processes of one machine may share
	Secret   []byte                 // replica_secret: the group's key; empty is one that the folder holds
	Group    string                 // the name under which members lend to it
	Replicas jetstream.KeyValue     // the bucket that replicas on several machines share (OpenBucket), who also have one Secret; nil where there are none

	MaxOperations int           // at once; 0 is 256
	MaxQueue      int           // that wait for one of those; 0 is 1024, -1 none
	MaxPerMember  int           // of one member, waiting ones too; 0 is a quarter of both, half of MaxOperations at most, 8 at least
	OpTimeout     time.Duration // of one operation with all that belongs to it; 0 is a minute
	LeaseTTL      time.Duration // how long another process waits for one that died while it renewed a pair; 0 is a minute
	NoLegacy      bool          // take no ops of before

	Logger *slog.Logger     // nil: nothing is logged
	Now    func() time.Time // nil is time.Now
	// Step, where it is set, is called at each step at which a crash matters: journal,
	// rotate, outbox, use, used, send. For tests.
	Step func(name string)
}

// A Sidecar is the device of some bots. It is safe for use by several goroutines.
type Sidecar struct {
	registry *integrations.Registry
	exec     *integrations.Executor
	brokers  map[string]*Broker
	bots     map[custody.KeyID]*bot
	group    string
	store    *store
	shared   backend // the store, or the replicas' bucket
	log      *slog.Logger
	now      func() time.Time
	step     func(string)
	legacy   bool
	started  time.Time

	opTimeout, leaseTTL time.Duration

	texts    custody.OpTexts
	flights  flights
	warm     warmPairs
	rests    rests
	reads    readJournal
	bounds   bounds
	counters counters

	closing  context.CancelFunc
	swept    chan struct{}
	inFlight sync.WaitGroup
	mu       sync.Mutex // guards stopped with inFlight.Add
	stopped  bool
}

// A bot is one of the identities, with its keys of the day.
type bot struct {
	id  *custody.Identity
	mu  sync.Mutex
	day [2]dayKey // the present one and the one before
}

type dayKey struct {
	key   *custody.Identity
	until time.Time
}

// Times of the key of the day: a new one is made an hour before the end of the old one, so
// that a member who has read the old one just now can still use it.
const (
	dayLife    = 24 * time.Hour
	dayOverlap = time.Hour
)

// New makes a sidecar and opens its folder.
func New(ctx context.Context, cfg Config) (*Sidecar, error) {
	s := &Sidecar{
		registry: cfg.Registry, exec: cfg.Executor, group: cfg.Group, log: cfg.Logger, now: cfg.Now, step: cfg.Step, legacy: !cfg.NoLegacy,
		brokers: make(map[string]*Broker), bots: make(map[custody.KeyID]*bot),
		opTimeout: cfg.OpTimeout, leaseTTL: cfg.LeaseTTL, swept: make(chan struct{}),
	}
	if len(cfg.Bots) == 0 {
		return nil, errors.New("sidecar: Bots: there is none")
	}
	if cfg.Dir == "" {
		return nil, errors.New("sidecar: Dir: it is not set")
	}
	if len(cfg.Secret) > 0 && len(cfg.Secret) < 32 {
		return nil, errors.New("sidecar: Secret: it has less than 32 bytes")
	}
	if cfg.Replicas != nil && len(cfg.Secret) == 0 {
		return nil, errors.New("sidecar: Secret: replicas that share a bucket need one")
	}
	for _, id := range cfg.Bots {
		s.bots[id.ID()] = &bot{id: id}
	}
	for _, b := range cfg.Brokers {
		if s.brokers[b.Origin] != nil {
			return nil, fmt.Errorf("sidecar: Brokers: %s stands there twice", b.Origin)
		}
		s.brokers[b.Origin] = b
	}
	if s.registry == nil {
		var err error
		if s.registry, err = integrations.Default(); err != nil {
			return nil, err
		}
	}
	if s.exec == nil {
		s.exec = new(integrations.Executor)
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.step == nil {
		s.step = func(string) {}
	}
	if s.opTimeout == 0 {
		s.opTimeout = time.Minute
	}
	if s.leaseTTL == 0 {
		s.leaseTTL = defaultLease
	}
	s.bounds.set(cfg.MaxOperations, cfg.MaxQueue, cfg.MaxPerMember)
	s.started = s.now()
	var err error
	if s.store, err = openStore(ctx, cfg.Dir, cfg.Secret); err != nil {
		return nil, err
	}
	s.shared = s.store
	if cfg.Replicas != nil {
		s.shared = &bucket{local: s.store, kv: cfg.Replicas}
	}
	ctx, s.closing = context.WithCancel(context.WithoutCancel(ctx))
	go s.sweep(ctx)
	return s, nil
}

// sweep forgets what is over, every hour.
func (s *Sidecar) sweep(ctx context.Context) {
	defer close(s.swept)
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		if err := s.store.sweep(ctx, s.now().Unix()); err != nil && ctx.Err() == nil {
			s.log.Warn("what is over could not be forgotten", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Close takes no more messages, waits for the operations that are under way until ctx ends,
// and closes the store. What was sent is finished and answered.
func (s *Sidecar) Close(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	idle := make(chan struct{})
	go func() { s.inFlight.Wait(); close(idle) }()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = fmt.Errorf("some operations did not end: %w", context.Cause(ctx))
	}
	s.closing()
	<-s.swept
	return errors.Join(err, s.store.close())
}

// begin counts a message in, unless the sidecar is stopping.
func (s *Sidecar) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.inFlight.Add(1)
	return true
}

// A Record is what an instance tells members of a bot.
type Record struct {
	Key      custody.PublicKey `json:"key"`
	Group    string            `json:"group"`
	Day      custody.PublicKey `json:"day"`
	DayUntil int64             `json:"day_until"` // seconds since 1970 UTC
}

// Records returns what is to be published of each bot. A key of the day lives in memory
// alone: it is asked for again within the hour.
func (s *Sidecar) Records() []Record {
	var all []Record
	for _, b := range s.bots {
		if k := b.today(s.now()); k.key != nil {
			all = append(all, Record{b.id.Public(), s.group, k.key.Public(), k.until.Unix()})
		}
	}
	return all
}

// today returns the present key of the day, and makes one where its time has come.
func (b *bot) today(now time.Time) dayKey {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.day[0]; k.key == nil || now.After(k.until.Add(-dayOverlap)) {
		id, err := custody.NewIdentity()
		if err != nil {
			return b.day[0]
		}
		b.day = [2]dayKey{{id, now.Add(dayLife)}, k}
	}
	if !now.Before(b.day[1].until) {
		b.day[1] = dayKey{}
	}
	return b.day[0]
}

// dayFor returns the key of the day that an envelope was sealed to, nil where it is none or
// its time is over.
func (b *bot) dayFor(id custody.KeyID, now time.Time) *custody.Identity {
	b.today(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.day {
		if k.key != nil && k.key.ID() == id && now.Before(k.until) {
			return k.key
		}
	}
	return nil
}

// Waiting returns the hand-backs that no member has acknowledged, the oldest first. A
// transport sends them after each start, and now and then.
func (s *Sidecar) Waiting(ctx context.Context) ([]*custody.Envelope, error) {
	return s.store.waiting(ctx)
}

// Counters say what a sidecar has done since it was started: numbers, and no content.
type Counters struct {
	Started    int64 `json:"started"` // seconds since 1970 UTC
	Running    int64 `json:"running"`
	Waiting    int64 `json:"waiting"`
	Operations int64 `json:"operations"` // that reached a provider
	Refused    int64 `json:"refused"`    // by a check
	Failed     int64 `json:"failed"`     // by a provider, or on the way
	Busy       int64 `json:"busy"`
	Dropped    int64 `json:"dropped"` // messages that got no answer
	Rotations  int64 `json:"rotations"`
	NotRotated int64 `json:"not_rotated"`
	Outbox     int64 `json:"outbox"` // hand-backs that wait for their member
}

type counters struct {
	Operations, Refused, Failed, Busy, Dropped, Rotations, NotRotated atomic.Int64
}

// Counters returns the numbers.
func (s *Sidecar) Counters(ctx context.Context) (Counters, error) {
	running, waiting := s.bounds.now()
	c := Counters{
		Started: s.started.Unix(), Running: running, Waiting: waiting,
		Operations: s.counters.Operations.Load(), Refused: s.counters.Refused.Load(), Failed: s.counters.Failed.Load(), Busy: s.counters.Busy.Load(),
		Dropped: s.counters.Dropped.Load(), Rotations: s.counters.Rotations.Load(), NotRotated: s.counters.NotRotated.Load(),
	}
	err := s.store.db.QueryRowContext(ctx, `SELECT count(*) FROM outbox`).Scan(&c.Outbox)
	return c, err
}
