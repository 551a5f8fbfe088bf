package instance

import (
	"context"
	"database/sql"
	"time"

	"github.com/elevenmessenger/connect/internal/database"
)

// NoStrangerLimit lets the tests of one machine log in as often as they like.
func NoStrangerLimit(i *Instance) {
	i.strangers.mu.Lock()
	defer i.strangers.mu.Unlock()
	i.strangers.perSecond, i.strangers.burst = 1e6, 1e6
}

// Sweep deletes what has come to its end, at once.
func Sweep(i *Instance) error { return i.store.sweep(context.Background(), i.now()) }

// SetStream sets how long a stream waits.
func SetStream(c *Config, hello, ping, pong, write time.Duration) {
	c.stream = streamTimes{hello, ping, pong, write}
}

// OldStore makes a database as the program of a version made it.
func OldStore(path string, version int) (*sql.DB, error) {
	all, err := database.Migrations(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	db, err := database.Open(path, database.Immediate, busyTimeout)
	if err != nil {
		return nil, err
	}
	return db, database.Migrate(context.Background(), db, all[:version], time.Now())
}

// LastVersion is the version of a database of this program.
func LastVersion() int {
	all, err := database.Migrations(migrations, "migrations")
	if err != nil {
		panic(err)
	}
	return len(all)
}

// TokenHash is what is stored of a session.
func TokenHash(token string) []byte { return tokenHash(token) }

// StrangerLimit sets what New sets.
func StrangerLimit(i *Instance) {
	i.strangers.mu.Lock()
	defer i.strangers.mu.Unlock()
	i.strangers.perSecond, i.strangers.burst = strangerRate, strangerBurst
	clear(i.strangers.buckets)
}
