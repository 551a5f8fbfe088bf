package custody_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
)

// BenchmarkEnvelope seals and opens an envelope, and beside it, in the same loop, the same bytes
// by the least that could do it: an ephemeral key, ECDH, AES-256-GCM. The keys of the pair's
// tags are cached, as they are after the first message. x-raw is the ratio of the medians.
// x-raw-hmac is that to raw with an HMAC-SHA256 of the bytes on both ends, which is the least
// that says who sent them.
func BenchmarkEnvelope(b *testing.B) {
	member, bot := newIdentity(b), newIdentity(b)
	h := custody.Header{Purpose: custody.PurposeResult, Space: "space", Thread: "thread", Op: custody.NewID()}
	for _, size := range []int{1 << 10, 44 << 10} {
		plaintext := make([]byte, size)
		rand.Read(plaintext)
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			var raw, mac, ours []time.Duration
			const rounds = 200 // even one iteration has the median of many
			for b.Loop() {
				for range rounds {
					t0 := time.Now()
					rawSealOpen(b, plaintext)
					t1 := time.Now()
					for range 2 {
						m := hmac.New(sha256.New, plaintext[:32])
						m.Write(plaintext)
						m.Sum(nil)
					}
					t2 := time.Now()
					e, err := bot.Seal(member.Public(), nil, h, plaintext)
					if err != nil {
						b.Fatal(err)
					}
					if _, err = member.Open(e, bot.Public(), nil); err != nil {
						b.Fatal(err)
					}
					raw, mac, ours = append(raw, t1.Sub(t0)), append(mac, t2.Sub(t1)), append(ours, time.Since(t2))
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ours)/median(raw), "x-raw")
			b.ReportMetric(median(ours)/(median(raw)+median(mac)), "x-raw-hmac")
			b.ReportMetric(median(raw), "raw-ns")
			b.ReportMetric(median(ours), "envelope-ns")
		})
	}
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2])
}

var rawKey, _ = ecdh.P256().GenerateKey(rand.Reader)

// rawSealOpen is ECIES at its barest.
func rawSealOpen(b *testing.B, plaintext []byte) {
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	gcm := func(shared []byte) cipher.AEAD {
		key := sha256.Sum256(shared)
		block, err := aes.NewCipher(key[:])
		check(err)
		aead, err := cipher.NewGCM(block)
		check(err)
		return aead
	}
	nonce := make([]byte, 12) // the key is used once
	ephemeral, err := ecdh.P256().GenerateKey(rand.Reader)
	check(err)
	shared, err := ephemeral.ECDH(rawKey.PublicKey())
	check(err)
	message := gcm(shared).Seal(ephemeral.PublicKey().Bytes(), nonce, plaintext, nil)

	theirs, err := ecdh.P256().NewPublicKey(message[:65])
	check(err)
	shared, err = rawKey.ECDH(theirs)
	check(err)
	_, err = gcm(shared).Open(nil, nonce, message[65:], nil)
	check(err)
}

func newIdentity(tb testing.TB) *custody.Identity {
	tb.Helper()
	i, err := custody.NewIdentity()
	if err != nil {
		tb.Fatal(err)
	}
	return i
}
