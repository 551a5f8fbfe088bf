package sidecar

import (
	"context"
	"sync"

	"github.com/elevenmessenger/connect/custody"
)

// bounds keep operations from taking all there is: so many at once, so many that wait, and
// so many of one member, who cannot keep the others out.
type bounds struct {
	room chan struct{} // holds one token an operation that runs

	mu       sync.Mutex
	max      int // that run or wait
	one      int // of one member
	n        int
	byMember map[custody.KeyID]int
}

func (b *bounds) set(running, queue, one int) {
	if running <= 0 {
		running = 256
	}
	switch {
	case queue == 0:
		queue = 1024
	case queue < 0:
		queue = 0
	}
	if b.max = running + queue; one <= 0 {
		one = max(8, min(b.max/4, running/2)) // what one member may have never fills the room
	}
	b.one, b.room, b.byMember = one, make(chan struct{}, running), make(map[custody.KeyID]int)
}

// enter waits for room, and says whether it had to. ok is false where the queue is full, or
// ctx ends first.
func (b *bounds) enter(ctx context.Context, member custody.KeyID) (waited, ok bool) {
	b.mu.Lock()
	if b.n >= b.max || b.byMember[member] >= b.one {
		b.mu.Unlock()
		return false, false
	}
	b.n++
	b.byMember[member]++
	b.mu.Unlock()
	select {
	case b.room <- struct{}{}:
		return false, true
	default:
	}
	select {
	case b.room <- struct{}{}:
		return true, true
	case <-ctx.Done():
		b.forget(member)
		return true, false
	}
}

func (b *bounds) leave(member custody.KeyID) {
	<-b.room
	b.forget(member)
}

func (b *bounds) forget(member custody.KeyID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n--
	if b.byMember[member]--; b.byMember[member] <= 0 {
		delete(b.byMember, member)
	}
}

func (b *bounds) now() (running, waiting int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := len(b.room)
	return int64(r), int64(max(b.n-r, 0))
}

// A readJournal remembers the answers of reads, in memory and for as long as there is room:
// a read that is repeated harms nothing. It also knows what runs just now, writes too.
type readJournal struct {
	mu    sync.Mutex
	all   map[opKey]*opRun
	order []opKey // finished ones, the oldest first
	size  int
}

type opKey struct {
	member custody.KeyID
	op     string
}

type opRun struct {
	done   chan struct{}
	answer []*custody.Envelope // once done is closed; nil where nothing may be repeated from here
	size   int
}

const (
	maxReadJournal = 256 << 10 // bytes of answers
	maxReadEntries = 1_000
)

// start returns the run of an op, and whether it is a new one, which the caller finishes.
func (r *readJournal) start(k opKey) (run *opRun, fresh bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if run := r.all[k]; run != nil {
		return run, false
	}
	if r.all == nil {
		r.all = make(map[opKey]*opRun)
	}
	run = &opRun{done: make(chan struct{})}
	r.all[k] = run
	return run, true
}

// join returns a new run of an op, which the caller finishes, or the answer of one that was
// there before, once it has one.
func (r *readJournal) join(ctx context.Context, k opKey) (fresh *opRun, answer []*custody.Envelope, err error) {
	for {
		run, fresh := r.start(k)
		if fresh {
			return run, nil, nil
		}
		select {
		case <-run.done:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		if run.answer != nil {
			return nil, run.answer, nil
		}
	}
}

// finish ends a run. Its answer is kept where keep says so.
func (r *readJournal) finish(k opKey, run *opRun, answer []*custody.Envelope, keep bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run.answer = answer
	close(run.done)
	if !keep || len(answer) == 0 {
		delete(r.all, k)
		return
	}
	for _, e := range answer {
		run.size += len(e.CT) + 512
	}
	r.order = append(r.order, k)
	r.size += run.size
	for len(r.order) > 0 && (r.size > maxReadJournal || len(r.order) > maxReadEntries) {
		first := r.order[0]
		r.order = r.order[1:]
		r.size -= r.all[first].size
		delete(r.all, first)
	}
}
