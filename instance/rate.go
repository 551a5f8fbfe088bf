package instance

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// A limiter lets each key make so many calls a second, and burst at once.
type limiter struct {
	perSecond, burst float64

	mu      sync.Mutex
	buckets map[string]bucket
}

type bucket struct {
	left float64
	at   time.Time
}

// maxBuckets bounds a limiter's memory.
const maxBuckets = 16384

// take takes one call, or says how long to wait for it.
func (l *limiter) take(key string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets[key]
	if !ok {
		if l.buckets == nil || len(l.buckets) >= maxBuckets {
			l.forget(now)
		}
		b = bucket{l.burst, now}
	}
	b.left = min(l.burst, b.left+max(0, now.Sub(b.at).Seconds())*l.perSecond)
	b.at = now
	var wait time.Duration
	if b.left < 1 {
		wait = max(time.Millisecond, time.Duration((1-b.left)/l.perSecond*float64(time.Second)))
	} else {
		b.left--
	}
	l.buckets[key] = b
	return wait
}

// forget drops the buckets that are full again. Where that is not enough it drops all: who
// can send from so many addresses is not held by a limit for each.
func (l *limiter) forget(now time.Time) {
	for k, b := range l.buckets {
		if b.left+now.Sub(b.at).Seconds()*l.perSecond >= l.burst {
			delete(l.buckets, k)
		}
	}
	if l.buckets == nil || len(l.buckets) >= maxBuckets {
		l.buckets = make(map[string]bucket)
	}
}

// remote names the network that a request comes from: one IPv6 customer has a /64.
func remote(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		return ip.Mask(net.CIDRMask(64, 128)).String()
	}
	return host
}
