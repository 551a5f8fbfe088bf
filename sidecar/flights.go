package sidecar

import (
	"context"
	"sync"
)

// flights are locks by name: whoever waits for one stops waiting when his context ends, and
// a lock that nobody holds takes no room. The zero value works.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight
}

type flight struct {
	turn chan struct{} // holds one token while the lock is free
	n    int           // holders and waiters
}

// lock takes the lock of a name, and returns what gives it back.
func (f *flights) lock(ctx context.Context, name string) (unlock func(), err error) {
	f.mu.Lock()
	l := f.all[name]
	if l == nil {
		l = &flight{turn: make(chan struct{}, 1)}
		l.turn <- struct{}{}
		if f.all == nil {
			f.all = make(map[string]*flight)
		}
		f.all[name] = l
	}
	l.n++
	f.mu.Unlock()
	leave := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if l.n--; l.n == 0 {
			delete(f.all, name)
		}
	}
	select {
	case <-l.turn:
		return func() { l.turn <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
