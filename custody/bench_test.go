package custody_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
)

// BenchmarkEnvelope seals and opens an envelope, and beside it the same bytes by what is the
// least that could do it: an ephemeral key, ECDH, AES-256-GCM. The keys of the pair's tags
// are cached, as they are after the first message. x-raw is the ratio of the two; x-raw-sent
// counts the JSON on both ends too.
func BenchmarkEnvelope(b *testing.B) {
	member, bot := newIdentity(b), newIdentity(b)
	h := custody.Header{Purpose: custody.PurposeResult, Space: "space", Thread: "thread", Op: custody.NewID()}
	for _, size := range []int{1 << 10, 44 << 10} {
		plaintext := make([]byte, size)
		rand.Read(plaintext)
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			var raw, ours time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				rawSealOpen(b, plaintext)
				between := time.Now()
				e, err := bot.Seal(member.Public(), nil, h, plaintext)
				if err != nil {
					b.Fatal(err)
				}
				if _, err = member.Open(e, bot.Public(), nil); err != nil {
					b.Fatal(err)
				}
				raw += between.Sub(start)
				ours += time.Since(between)
			}
			b.ReportMetric(float64(ours)/float64(raw), "x-raw")
			b.ReportMetric(float64(raw.Nanoseconds())/float64(b.N), "raw-ns/op")
		})
	}
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
