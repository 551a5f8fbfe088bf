package main

import (
	"os"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/custody"
)

// Whatever is given as a broker's token is judged without a crash, and not repeated.
func FuzzBrokerToken(f *testing.F) {
	s, err := brokertest.Start(brokertest.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	const member = custody.KeyID("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	good := s.Token("cli:" + string(member))
	now := s.Clock.Now()
	if _, err := checkBrokerToken(good, brokertest.Origin, member, now); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(s.Token())
	f.Add("ghp_0123456789")
	f.Add("a.b.c")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		until, err := checkBrokerToken(text, brokertest.Origin, member, now)
		if err == nil && (!until.After(now) || strings.Count(text, ".") != 2) {
			t.Errorf("taken, until %s", until)
		}
		if err != nil && len(text) > 20 && strings.Contains(err.Error(), text) {
			t.Errorf("the error repeats it: %v", err)
		}
	})
}

// A lock's file is read as what mark wrote, or not at all.
func TestLockRemembers(t *testing.T) {
	v, err := (&homeFlag{dir: t.TempDir() + "/vault"}).make()
	if err != nil {
		t.Fatal(err)
	}
	id := custody.NewID()
	for _, want := range []int64{-1, 0, 7, 1 << 40, -1, 3} {
		l, err := v.lock(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.mark(want); err != nil {
			t.Fatal(err)
		}
		l.release()
		if l, err = v.lock(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if got, err := l.spent(); err != nil || got != want {
			t.Errorf("spent: %d, %v; want %d", got, err, want)
		}
		// Nobody else has it meanwhile.
		other, err := v.lock(t.Context(), custody.NewID())
		if err != nil {
			t.Fatal(err)
		}
		other.release()
		f := l.file
		twice, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tryLock(twice, false); err != nil || got {
			t.Errorf("locked twice: %v %v", got, err)
		}
		twice.Close()
		l.release()
	}
}
