package awssecrets

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/elevenmessenger/connect/broker"
)

func create(t *testing.T, p *peer, id, value string) {
	t.Helper()
	if _, err := p.admin.CreateSecret(context.Background(), &secretsmanager.CreateSecretInput{Name: &id, SecretString: &value}); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, p *peer, id, value string) {
	t.Helper()
	if _, err := p.admin.PutSecretValue(context.Background(), &secretsmanager.PutSecretValueInput{SecretId: &id, SecretString: &value}); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, p *peer, id string) {
	t.Helper()
	if _, err := p.admin.DeleteSecret(context.Background(), &secretsmanager.DeleteSecretInput{SecretId: &id}); err != nil {
		t.Fatal(err)
	}
}

func secret(id, text string) string {
	return fmt.Sprintf(`{"client_id":%q,"client_secret":%q}`, id, text)
}

func is(c broker.Client, err error, want string) bool {
	return err == nil && c.Secret.Reveal() == want
}

// TestSecretsManager shows the store, the cache over it and the keys against every peer that
// this machine has.
func TestSecretsManager(t *testing.T) {
	for _, p := range peers(t) {
		t.Run(strings.ReplaceAll(p.name, " ", "_"), func(t *testing.T) {
			t.Logf("Secrets Manager is played by %s", p.name)
			t.Run("versions", func(t *testing.T) { testVersions(t, p) })
			t.Run("strict", func(t *testing.T) { testStrict(t, p) })
			t.Run("faults", func(t *testing.T) { testFaults(t, p) })
			t.Run("cache", func(t *testing.T) { testCache(t, p) })
			t.Run("keys", func(t *testing.T) { testKeys(t, p) })
		})
	}
}

func testVersions(t *testing.T, p *peer) {
	ctx := context.Background()
	s := Store{Client: p.client(t)}
	absent := func(name string, c broker.Client, err error) {
		t.Helper()
		if !errors.Is(err, broker.ErrNoClient) {
			t.Errorf("%s: %v %v, want ErrNoClient", name, c, err)
		}
	}
	c, err := s.Version(ctx, "versions", false)
	absent("no secret", c, err)
	create(t, p, "connect/oauth/versions", `{"client_id":"id","client_secret":"one","hosts":["a.example"]}`)
	if c, err := s.Version(ctx, "versions", false); !is(c, err, "one") || c.ID != "id" || len(c.Hosts) != 1 {
		t.Errorf("the present version: %+v %v", c, err)
	}
	c, err = s.Version(ctx, "versions", true)
	absent("no version before", c, err)
	put(t, p, "connect/oauth/versions", secret("id", "two"))
	if c, err := s.Version(ctx, "versions", false); !is(c, err, "two") {
		t.Errorf("after a rotation: %v", err)
	}
	if c, err := s.Version(ctx, "versions", true); !is(c, err, "one") {
		t.Errorf("the version before: %v", err)
	}
	remove(t, p, "connect/oauth/versions")
	c, err = s.Version(ctx, "versions", false)
	absent("deleted", c, err)
	p.set()
	for _, id := range []string{"", "../x", "A", "a b", "x/../y", strings.Repeat("a", 21)} {
		c, err = s.Version(ctx, id, false)
		absent(id, c, err)
	}
	if n := p.n.Load(); n != 0 {
		t.Errorf("%d questions about what is no service", n)
	}
	create(t, p, "elsewhere/versions", secret("id", "three"))
	if c, err := (Store{Client: p.client(t), Prefix: "elsewhere"}).Version(ctx, "versions", false); !is(c, err, "three") {
		t.Errorf("another prefix: %v", err)
	}
}

func testStrict(t *testing.T, p *peer) {
	const marker = "zq9marker"
	create(t, p, "connect/oauth/strict", secret("id", "x"))
	for _, text := range []string{
		marker, `"` + marker + `"`, `{}`, `{"client_id":""}`, `{"client_id":"` + marker + `","client_secret":"b","extra":1}`, `{"client_id":"` + marker + `","client_id":"b"}`,
		`{"client_id":1,"client_secret":"` + marker + `"}`, `{"client_id":"` + marker + `"}{}`, `{"client_id":" ` + marker + `"}`, `{"client_id":"` + marker + `","client_secret":"x\n"}`,
		`{"client_id":"` + marker + `","hosts":["https://x.example"]}`, `{"client_id":"` + marker + `","hosts":[""]}`, `{"Client_Id":"` + marker + `"}`,
	} {
		put(t, p, "connect/oauth/strict", text)
		c, err := Store{Client: p.client(t)}.Version(context.Background(), "strict", false)
		if err == nil || errors.Is(err, broker.ErrNoClient) || strings.Contains(err.Error(), marker) {
			t.Errorf("%s: %v %v, want an error that does not hold it", text, c, err)
		}
	}
}

func testFaults(t *testing.T, p *peer) {
	create(t, p, "connect/oauth/faults", secret("id", "x"))
	ask := func() (broker.Client, time.Duration, error) {
		start := time.Now()
		cache := New(p.client(t), "")
		c, err := cache.Client(context.Background(), "faults")
		return c, time.Since(start), err
	}
	// Once: the second attempt has it.
	for _, f := range []fault{throttle, failure, drop, html} {
		p.set(f)
		c, took, err := ask()
		if !is(c, err, "x") || p.n.Load() != 2 || took > time.Second {
			t.Errorf("%s once: %v, %d attempts, %v", f, err, p.n.Load(), took)
		}
	}
	// For ever: an error, soon, and never that there is no client.
	for f, attempts := range map[fault]int64{throttle: 2, failure: 2, drop: 2, html: 2, slow: 2, denied: 1, sealed: 1} {
		p.always(f)
		_, took, err := ask()
		var e *Error
		if !errors.As(err, &e) || errors.Is(err, broker.ErrNoClient) {
			t.Errorf("%s: %v, want an Error", f, err)
			continue
		}
		if n := p.n.Load(); n > attempts || f != slow && n != attempts {
			t.Errorf("%s: %d attempts, want %d", f, n, attempts)
		}
		if took > 1700*time.Millisecond {
			t.Errorf("%s: %v", f, took)
		}
		if text := err.Error(); strings.Contains(text, "SENTINEL") || strings.Contains(text, "127.0.0.1") || strings.Contains(text, "faults") {
			t.Errorf("%s: the error says %s", f, text)
		}
		if (f == denied || f == sealed || f == throttle) && e.Code != string(f) {
			t.Errorf("%s: the code is %q", f, e.Code)
		}
	}
	p.set()
}

func testCache(t *testing.T, p *peer) {
	ctx := context.Background()
	create(t, p, "connect/oauth/cache", secret("id", "one"))
	var mu sync.Mutex
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	advance := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) }
	cache := New(p.client(t), "")
	cache.Now = clock
	p.set()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if c, err := cache.Client(ctx, "cache"); !is(c, err, "one") {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	if n := p.n.Load(); n != 1 {
		t.Errorf("100 callers made %d questions", n)
	}
	// A caller that goes away does not take the answer from the others.
	gone, cancel := context.WithCancel(ctx)
	cancel()
	advance(6 * time.Minute)
	if c, err := cache.Client(gone, "cache"); !is(c, err, "one") || p.n.Load() != 2 {
		t.Errorf("a caller that is gone: %v, %d questions", err, p.n.Load())
	}
	// The store fails: what is known goes on, and it is not asked at every call.
	advance(6 * time.Minute)
	p.always(denied)
	for range 20 {
		if c, err := cache.Client(ctx, "cache"); !is(c, err, "one") {
			t.Errorf("with a store that refuses: %v", err)
		}
	}
	if n := p.n.Load(); n != 1 {
		t.Errorf("20 calls asked a store that refuses %d times", n)
	}
	// The provider does not know it any more: the store has another, and then the one before.
	p.set()
	put(t, p, "connect/oauth/cache", secret("id", "two"))
	advance(10 * time.Second)
	one, _ := cache.Client(ctx, "cache") // "two" now: the time was up
	if !is(one, nil, "two") {
		t.Fatal("the cache has not seen the rotation")
	}
	two, err := cache.Other(ctx, "cache", []broker.Client{one})
	if !is(two, err, "one") {
		t.Errorf("other than the present version: %v", err)
	}
	cache.Worked("cache", two)
	if c, err := cache.Client(ctx, "cache"); !is(c, err, "one") {
		t.Errorf("the one that worked is not first: %v", err)
	}
	if _, err := cache.Other(ctx, "cache", []broker.Client{one, two}); !errors.Is(err, broker.ErrNoClient) {
		t.Errorf("with both refused: %v", err)
	}
	// A cold process in the midst of a rotation has never seen the version before: it asks.
	cold := New(p.client(t), "")
	cold.Now = clock
	first, err := cold.Client(ctx, "cache")
	if !is(first, err, "two") {
		t.Fatal(err)
	}
	p.set()
	var wrong int
	for range 50 {
		wg.Go(func() {
			c, err := cold.Other(ctx, "cache", []broker.Client{first})
			if !is(c, err, "one") {
				mu.Lock()
				wrong++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if n := p.n.Load(); wrong != 0 || n != 2 {
		t.Errorf("50 callers at once: %d without an answer, %d questions, want 0 and 2", wrong, n)
	}
	// A new present version comes first again, whichever worked before.
	put(t, p, "connect/oauth/cache", secret("id", "three"))
	advance(6 * time.Minute)
	if c, err := cache.Client(ctx, "cache"); !is(c, err, "three") {
		t.Errorf("after another rotation: %v", err)
	}
}

func testKeys(t *testing.T, p *peer) {
	ctx := context.Background()
	text := func(c string) string { return strings.Repeat(c, 64) }
	create(t, p, "state", text("a"))
	k := &Keys{Client: p.client(t), SecretID: "state"}
	p.set()
	first, err := k.Keys(ctx)
	if err != nil || len(first) != 1 || len(first[0].ID) != 8 {
		t.Fatalf("%v %v", first, err)
	}
	if again, err := k.Keys(ctx); err != nil || again[0] != first[0] || p.n.Load() != 3 {
		t.Errorf("a second time: %v %v, %d questions", again, err, p.n.Load())
	}
	put(t, p, "state", text("b"))
	second, err := k.Keys(ctx)
	if err != nil || len(second) != 2 || second[1] != first[0] || second[0].ID == first[0].ID {
		t.Errorf("after a rotation: %v %v", second, err)
	}
	put(t, p, "state", text("c"))
	if third, err := k.Keys(ctx); err != nil || len(third) != 2 || third[1] != second[0] {
		t.Errorf("after two: %v %v", third, err)
	}
	other := &Keys{Client: p.client(t), SecretID: "state"}
	if got, err := other.Keys(ctx); err != nil || len(got) != 2 {
		t.Errorf("another process: %v %v", got, err)
	}
	// Where the one before cannot be read, what seals is known all the same.
	put(t, p, "state", text("d"))
	p.set(none, denied)
	if got, err := k.Keys(ctx); err != nil || len(got) != 2 || got[0].ID == second[0].ID {
		t.Errorf("with the one before refused: %v %v", got, err)
	}
	if _, err := (&Keys{Client: p.client(t), SecretID: "nosuch"}).Keys(ctx); err == nil || errors.Is(err, broker.ErrNoClient) {
		t.Errorf("no such key: %v", err)
	}
	p.always(denied)
	var e *Error
	if _, err := k.Keys(ctx); !errors.As(err, &e) || e.Code != "AccessDeniedException" {
		t.Errorf("refused: %v", err)
	}
	p.set()
}

func TestParseKeys(t *testing.T) {
	const b64 = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA"
	for text, want := range map[string]int{
		"k1:" + b64: 1, "k2:" + b64 + "\nk1:" + b64 + "\n": 2, strings.Repeat("x", 43): 1, " " + strings.Repeat("x", 64) + "\n": 1,
		strings.Repeat("x", 64) + " " + strings.Repeat("y", 43) + " k1:" + b64: 3, strings.Repeat("x", 64) + " " + strings.Repeat("x", 64): 0,
		"": 0, "\n": 0, strings.Repeat("x", 42): 0, "k1:" + b64 + " k1:" + b64: 0, "k1:AAAA": 0, "k1:" + b64 + "=": 0, "k1:zq9marker": 0, `{"key":"zq9marker"}`: 0, "zq9marker zq9marker": 0,
	} {
		got, err := ParseKeys(text)
		if len(got) != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d keys, %v; want %d", text, len(got), err, want)
		}
		if err != nil && strings.Contains(err.Error(), "zq9marker") {
			t.Errorf("%q: the error holds it: %v", text, err)
		}
	}
	if got := fmt.Sprintf("%v %+v %#v %s %x", broker.Key{ID: "k1", Secret: [32]byte{7}}, broker.Key{ID: "k1"}, broker.Key{ID: "k1"}, broker.Key{ID: "k1"}, broker.Key{ID: "k1", Secret: [32]byte{7}}); strings.Contains(got, "7") {
		t.Errorf("a key is printed: %s", got)
	}
}

func TestNewClient(t *testing.T) {
	if _, err := NewClient(func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Errorf("no region: %v", err)
	}
	// Without credentials nothing is sent, and it is an error, not a service that is not there.
	c, err := NewClient(func(name string) string {
		return map[string]string{"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(c, "").Client(context.Background(), "github"); err == nil || errors.Is(err, broker.ErrNoClient) {
		t.Errorf("no credentials: %v", err)
	}
	if _, err := NewClient(func(string) string { return "x.example/?" }); err == nil || strings.Contains(err.Error(), "example") {
		t.Errorf("a region that is none: %v", err)
	}
}
