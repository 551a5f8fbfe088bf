package faults_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

const (
	host      = "api.faults.example"
	leaseTime = 3 * time.Second
)

// A fault is what goes wrong in one run.
type fault struct {
	row  string
	kill string // the step at which the process dies
	ack  bool   // while the acknowledgement is taken, not the operation
	op   string // whoami or write, where it matters
	two  bool   // another process, which shares the folder, goes on in its place
	hop  string // where the network fails
	net  string // and how
}

// How a run ended.
const (
	kept   = "kept"
	cutOff = "cut off" // the answer never reached the disk, and could not: the member was told
	lost   = "lost"
)

type result struct {
	end     string
	twice   int // an operation ran again
	again   int // a token was redeemed again where nothing allows it
	reached bool
	note    string
}

// A connection of the worker's member, with what the provider knows of it.
type connection struct {
	*member
	service  string
	surprise bool // its token is not due; the provider has ended it all the same
	family   *family
}

// A worker has a broker, a folder and one replica, and does one run after the other.
type worker struct {
	t        testing.TB
	rng      *rand.Rand
	world    *world
	provider *provider
	reg      *integrations.Registry
	setup    setup
	bot, id  *custody.Identity
	clock    time.Duration
	hops     map[string]*proxy
	replica  *process
	spare    *process
	conns    map[string]*connection
	starts   int
}

// The hops of the network.
const (
	toBroker   = "sidecar–broker"
	toProvider = "sidecar–provider"
	brokerOut  = "broker–provider"
)

func newWorker(t testing.TB, p *provider, seed uint64) *worker {
	w := &worker{t: t, rng: rand.New(rand.NewPCG(seed, 7)), provider: p, bot: must(custody.NewIdentity()), id: must(custody.NewIdentity()), hops: make(map[string]*proxy), conns: make(map[string]*connection)}
	dir := must(filepath.Abs("testdata/registry"))
	w.reg = must(integrations.Load(os.DirFS(dir)))
	var at atomic.Value // known only once the broker runs
	front := func() string { return at.Load().(string) }
	w.hops[brokerOut] = newProxy(t, stream(front))
	w.world = newWorld(t, dir, host, "http://"+p.addr, w.hops[brokerOut].addr)
	at.Store(w.world.to(host))
	w.hops[toProvider] = newProxy(t, stream(front))
	w.hops[toBroker] = newProxy(t, messages(w.world))
	w.setup = setup{Bots: [][]byte{must(w.bot.MarshalPKCS8())}, Dir: t.TempDir(), Secret: []byte(strings.Repeat("s", 32)), Group: group, Registry: dir,
		Broker: brokerName, Token: w.world.token, BrokerAt: w.hops[toBroker].addr, Plain: true,
		To: map[string]string{host + ":443": w.hops[toProvider].addr}, CA: w.world.ca, LeaseTTL: leaseTime}
	w.start()
	t.Cleanup(func() { w.replica.stop() })
	return w
}

func (w *worker) now() time.Time { return time.Now().Add(w.clock) }

func (w *worker) start() {
	w.starts++
	w.setup.Clock = w.clock
	w.replica = startProcess(w.t, w.setup)
}

func (w *worker) forward(d time.Duration) {
	w.clock += d
	w.replica.call(command{Do: "clock", Clock: w.clock})
}

func (w *worker) sometimes(percent int) bool { return w.rng.IntN(100) < percent }

// conn is the connection of a service; it is made anew where there is none.
func (w *worker) conn(service string, surprise bool) *connection {
	key := fmt.Sprint(service, surprise)
	if c := w.conns[key]; c != nil {
		return c
	}
	expires := 60 // due for every grant
	if surprise {
		expires = 3600
	}
	code, f := w.provider.consent(service, expires)
	cred, err := w.world.connect(service, code, w.now())
	if err != nil {
		w.t.Fatal(err)
	}
	c := &connection{&member{id: w.id, bot: w.bot.Public(), reg: w.reg, now: w.now}, service, surprise, f}
	c.store(cred)
	w.conns[key] = c
	return c
}

// An attempt is one operation as a client pursues it, over all that happens.
type attempt struct {
	*connection
	o     *order
	cmd   command
	code  string
	words string
	codes []string
	died  bool
	kills func() // arms what kills the process while the acknowledgement is taken
}

func (w *worker) attempt(c *connection, o *order) *attempt { return &attempt{connection: c, o: o} }

// pursue sends an op until it has an end. What died is started again.
func (w *worker) pursue(a *attempt) error {
	var err error
	if a.cmd, err = a.post(a.o); err != nil {
		return err
	}
	for range 25 {
		l, alive := w.replica.call(a.cmd)
		for _, h := range w.hops {
			h.up() // an outage lasts as long as one op
		}
		if !alive {
			a.died = true
			a.codes = append(a.codes, "died")
			w.restart(a.connection)
			if w.sometimes(50) { // the same ids, with what the client has by now
				if a.cmd, err = a.post(a.o); err != nil {
					return err
				}
			}
			continue
		}
		if l.Err != "" {
			return fmt.Errorf("a message was dropped: %s", l.Err)
		}
		r, acked, err := a.take(l.All)
		if err != nil {
			return err
		}
		if a.kills != nil {
			a.kills()
			acked = true
		}
		if acked && (a.kills != nil || w.sometimes(80)) {
			if _, alive := w.replica.call(a.ack()); !alive {
				a.died = true
				w.restart(a.connection)
			}
			a.kills = nil
		}
		if r == nil {
			return fmt.Errorf("no result came")
		}
		a.code, a.words = "ok", ""
		var retry time.Duration
		if r.Error != nil {
			a.code, a.words, retry = r.Error.Code, r.Error.Message, time.Duration(r.Error.RetryAfter)*time.Second
		}
		a.codes = append(a.codes, a.code)
		switch a.code {
		case "ok", "reconnect":
			return nil
		case "needs_pair":
			a.o.needsPair = true
		case "rotated":
		case "restarted", "temporary", "misconfigured", "busy", "unreachable", "rate_limited":
			// Nothing was done: after a while the member taps again.
			w.forward(max(retry, time.Second) + time.Second)
			a.renew()
		case "unknown_outcome":
			if a.o.op == "write" {
				return nil
			}
			a.renew()
		default:
			return fmt.Errorf("the answer is %s: %s", a.code, a.words)
		}
		if a.cmd, err = a.post(a.o); err != nil {
			return err
		}
	}
	return fmt.Errorf("it does not end: %s", strings.Join(a.codes, " "))
}

func (a *attempt) renew() { a.o.id, a.o.grant = custody.NewID(), custody.NewID() }

// restart starts what died, as a supervisor does: at once, or when its lease is over.
func (w *worker) restart(c *connection) {
	<-w.replica.gone
	for _, h := range w.hops {
		h.disarm()
	}
	old := w.replica
	if !w.sometimes(10) {
		w.clock += leaseTime
	}
	if w.spare != nil {
		w.replica, w.spare = w.spare, nil
		w.forward(0)
	} else {
		w.setup.Young = c.service != "grace" && w.sometimes(15)
		w.start()
	}
	w.replica.mu.Lock()
	for k, n := range old.steps {
		w.replica.steps[k] += n
	}
	w.replica.mu.Unlock()
	if w.sometimes(50) {
		w.bring(c)
	}
}

// bring brings the hand-backs that wait, as a transport does after each start.
func (w *worker) bring(c *connection) {
	l, alive := w.replica.call(command{Do: "waiting"})
	if !alive {
		return
	}
	_, acked, err := c.take(l.All)
	if err != nil {
		w.t.Errorf("what waits: %v", err)
	}
	if acked && w.sometimes(80) {
		w.replica.call(c.ack())
	}
}

// run does one run with one fault.
func (w *worker) run(f fault) (res result) {
	services := []string{"strict", "grace", "constant"}
	c := w.conn(services[w.rng.IntN(3)], w.sometimes(50))
	if w.replica.dead() {
		w.restart(c)
	}
	w.replica.anew()
	if c.surprise {
		w.provider.spoil(c.family)
	}
	before := w.provider.tally(c.family)
	text := "line " + custody.NewID()
	o := write(text)
	if f.op == "whoami" || f.op == "" && w.sometimes(50) {
		o = read()
	}
	a := w.attempt(c, o)
	if f.two {
		w.setup.Young, w.setup.Clock = false, w.clock
		w.spare = startProcess(w.t, w.setup)
	}
	w.arm(f, a)
	fail := func(err error) result {
		w.t.Errorf("%s, %s, surprise %v, %s: %v [%s]", f.row, c.service, c.surprise, a.o.op, err, strings.Join(a.codes, " "))
		return res
	}
	err := w.pursue(a)
	res.reached = w.disarm(f, a)
	if w.spare != nil {
		w.spare.stop()
		w.spare = nil
	}
	if err != nil {
		return fail(err)
	}
	// A transport brings a message again, and nothing of it runs again.
	for range 1 + w.rng.IntN(2) {
		l, alive := w.replica.call(a.cmd)
		if !alive {
			a.died = true
			w.restart(c)
			continue
		}
		if _, _, err := a.take(l.All); err != nil {
			return fail(err)
		}
	}
	answered, written := w.replica.reached("answered") > 0, w.replica.reached("outbox") > 0
	res.end = kept
	if a.code != "reconnect" {
		v := w.attempt(c, read())
		for try := range 4 {
			if try > 0 {
				w.bring(c)
				v = w.attempt(c, read())
			}
			if err := w.pursue(v); err != nil {
				return fail(err)
			}
			if v.code == "reconnect" || w.provider.alive(c.credential().Secret.Reveal()) {
				break
			}
		}
		a.code, a.words = v.code, v.words
		a.codes = append(a.codes, "then")
		a.codes = append(a.codes, v.codes...)
		if a.code == "ok" && !w.provider.alive(c.credential().Secret.Reveal()) {
			res.end, res.note = lost, "the member's pair does not work"
		}
	}
	after := w.provider.tally(c.family)
	if a.code == "reconnect" {
		res.end, res.note = w.judge(f, a, answered, written, after.redemptions-before.redemptions)
		w.provider.forget(c.family)
		delete(w.conns, fmt.Sprint(c.service, c.surprise))
	}
	n := w.provider.written(text)
	if n > 1 {
		res.twice, res.note = n-1, fmt.Sprintf("%d writes", n)
	}
	if o.op == "write" && a.codes[len(a.codes)-1] == "ok" && n == 0 && contains(a.codes, "ok", "then") {
		res.twice, res.note = 1, "a write was answered, and never ran"
	}
	if res.again = after.twice - before.twice; res.again != 0 {
		res.note = "a token was redeemed twice"
	}
	if n := after.again - before.again; n > 1 {
		res.again, res.note = n-1, fmt.Sprintf("within the grace a token was redeemed %d times more", n)
	}
	if res.note != "" {
		res.note = fmt.Sprintf("%s, surprise %v, %s: %s [%s] %s", c.service, c.surprise, o.op, res.note, strings.Join(a.codes, " "), a.words)
	}
	return res
}

// contains says whether the codes before a mark end with code.
func contains(codes []string, code, mark string) bool {
	for i, c := range codes {
		if c == mark {
			return i > 0 && codes[i-1] == code
		}
	}
	return false
}

// cuts says whether a fault may keep the answer from the sidecar without its knowing that
// nothing was redeemed.
func (f fault) cuts() bool {
	switch f.kill {
	case "rotate", "asked", "answered", "random":
		return true
	}
	switch f.net {
	case dropBefore, dropAfter, cutRequest, cutAnswer, flipRequest, flipAnswer, tooSlow, gatewayOf, gatewayIn:
		return f.hop != toProvider
	}
	return false
}

// judge says whether a member who must connect anew had to.
func (w *worker) judge(f fault, a *attempt, answered, written bool, redemptions int) (end, note string) {
	switch {
	case a.service == "constant":
		return lost, "its token never changes"
	case written:
		return lost, "the fresh pair was in the outbox"
	case !f.cuts():
		return lost, "nothing was cut off"
	case answered && f.kill != "answered" && f.kill != "random" && f.net != flipAnswer && f.net != flipRequest:
		return lost, "the fresh pair had arrived"
	case a.service == "grace" && !strings.Contains(strings.Join(a.codes, " "), "restarted"):
		return lost, "the provider would have answered once more"
	case redemptions > 1 && a.service == "strict":
		return lost, fmt.Sprintf("%d redemptions", redemptions)
	case !strings.Contains(a.words, "its answer was lost on the way"):
		return lost, "the member was not told why"
	}
	return cutOff, ""
}

func (w *worker) arm(f fault, a *attempt) {
	kill := func(step string) { w.replica.call(command{Do: "kill", Step: step, Nth: 1}) }
	switch {
	case f.ack:
		a.kills = func() { kill(f.kill) }
	case f.kill == "asked":
		p := w.replica
		w.provider.onRedeem(a.family, func() { p.kill(); <-p.gone })
	case f.kill == "random":
		p, d := w.replica, time.Duration(w.rng.Int64N(int64(25*time.Millisecond)))
		time.AfterFunc(d, p.kill)
	case f.kill != "":
		kill(f.kill)
	case f.hop == toBroker:
		w.hops[f.hop].arm(f.net, 0)
	case w.sometimes(60):
		w.hops[f.hop].arm(f.net, 0)
	default:
		w.hops[f.hop].arm(f.net, w.rng.IntN(3)) // in the midst of a handshake
	}
}

// disarm takes back what has not come, and says whether it came.
func (w *worker) disarm(f fault, a *attempt) bool {
	w.provider.onRedeem(a.family, nil)
	left := false
	for _, h := range w.hops {
		left = h.disarm() || left
	}
	if f.kill == "random" && !a.died {
		<-w.replica.gone // it comes yet
		w.restart(a.connection)
		return true
	}
	if f.kill == "" {
		return !left
	}
	if !a.died {
		w.replica.call(command{Do: "kill"})
	}
	return a.died
}
