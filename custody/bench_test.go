package custody_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"testing"

	"github.com/elevenmessenger/connect/custody"
)

func BenchmarkParts(b *testing.B) {
	a, _ := custody.NewIdentity()
	c, _ := custody.NewIdentity()
	for _, n := range []int{1 << 10, 44 << 10} {
		pt := make([]byte, n)
		h := custody.Header{Purpose: custody.PurposeSay, Space: "s", Thread: "t"}
		e, err := a.Seal(c.Public(), nil, h, pt)
		if err != nil { b.Fatal(err) }
		data, _ := e.Marshal()
		b.Run("seal", func(b *testing.B) { for b.Loop() { a.Seal(c.Public(), nil, h, pt) } })
		b.Run("open", func(b *testing.B) { for b.Loop() { c.Open(e, a.Public(), nil) } })
		b.Run("marshal", func(b *testing.B) { for b.Loop() { e.Marshal() } })
		b.Run("parse", func(b *testing.B) { for b.Loop() { custody.ParseEnvelope(data) } })
		b.Run("sha", func(b *testing.B) { for b.Loop() { sha256.Sum256(pt) } })
		k, _ := ecdh.P256().GenerateKey(rand.Reader)
		b.Run("raw", func(b *testing.B) { for b.Loop() {
			eph, _ := ecdh.P256().GenerateKey(rand.Reader)
			s, _ := eph.ECDH(k.PublicKey())
			blk, _ := aes.NewCipher(s)
			g, _ := cipher.NewGCMWithRandomNonce(blk)
			ct := g.Seal(nil, nil, pt, nil)
			p, _ := ecdh.P256().NewPublicKey(eph.PublicKey().Bytes())
			s, _ = k.ECDH(p)
			blk, _ = aes.NewCipher(s)
			g, _ = cipher.NewGCMWithRandomNonce(blk)
			g.Open(nil, nil, ct, nil)
		} })
	}
}
