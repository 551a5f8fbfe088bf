package custody

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// node returns the repository's root once Node and what the JavaScript needs are there. CI has
// both, so that only -short goes on without.
func node(t *testing.T) string {
	t.Helper()
	missing := t.Fatalf
	if testing.Short() {
		missing = t.Skipf
	}
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			missing("%s is not here: install Node 20 or newer, or run with -short", program)
		}
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "node_modules", ".package-lock.json")); err != nil {
		if testing.Short() {
			t.Skip("node_modules is not here: run npm ci")
		}
		run(t, root, nil, "npm", "ci", "--no-audit", "--no-fund")
	}
	return root
}

func run(t *testing.T, dir string, stdin []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, tail(stdout.Bytes()), tail(stderr.Bytes()))
	}
	return stdout.Bytes()
}

func tail(b []byte) []byte { return b[max(0, len(b)-4000):] }

// TestJavaScript runs the tests of the JavaScript counterpart, which run the same vectors, and
// its type check.
func TestJavaScript(t *testing.T) {
	root := node(t)
	t.Run("vectors", func(t *testing.T) {
		run(t, root, nil, "node", "--test", "web/test/vectors.test.mjs", "web/test/custody.test.mjs")
	})
	t.Run("types", func(t *testing.T) {
		if testing.Short() {
			t.Skip("the type check is not for -short")
		}
		run(t, root, nil, "npm", "run", "--silent", "types")
	})
}

// TestCrossSealing: Node, with keys that are not extractable, opens what Go seals in this run,
// and Go what Node seals; of every purpose and of many sizes.
func TestCrossSealing(t *testing.T) {
	root := node(t)
	type job struct {
		Header   map[string]string `json:"header"`
		Envelope string            `json:"envelope"`
		Self     bool              `json:"self"`
		Day      bool              `json:"day"`
		Unsigned bool              `json:"unsigned"`
	}
	ada, peer, day := newTestIdentity(t), newTestIdentity(t), newTestIdentity(t)
	var jobs []job
	var plaintexts [][]byte
	for p := range opForms {
		for _, size := range []int{0, 1, 15, 16, 17, 1000, 44 << 10} {
			h := Header{Purpose: p, Space: "space", Thread: "thread", Op: map[Purpose]string{
				PurposeCredential: "c1.7", PurposeOp: opA, PurposeGrant: opA, PurposeResult: opA, PurposeHandback: opA, PurposeRevoke: opA,
				PurposeHandoff: RefreshOp(nil), PurposeTab: "practice.write", PurposeRefresh: RefreshOp(nil),
			}[p]}
			if p.unsigned() {
				h.Space, h.Thread = "", ""
			}
			plaintext := make([]byte, size)
			for i := range plaintext {
				plaintext[i] = byte(rand.Uint32())
			}
			j := job{
				Header: map[string]string{"purpose": string(p), "space": h.Space, "thread": h.Thread, "op": h.Op},
				Self:   p.self(), Unsigned: p.unsigned(), Day: p.dated() && size%2 == 1,
			}
			from := peer
			if j.Self {
				from = ada
			}
			var dayKey *PublicKey
			if j.Day {
				dayKey = &day.pub
			}
			var e *Envelope
			if j.Unsigned {
				e = must(SealOneTime(ada.pub, h, plaintext))
			} else {
				e = must(from.Seal(ada.pub, dayKey, h, plaintext))
			}
			j.Envelope = string(must(e.Marshal()))
			jobs = append(jobs, j)
			plaintexts = append(plaintexts, plaintext)
		}
	}
	input := must(json.Marshal(map[string]any{"me": pkcs8Of(t, ada), "peer": base64Of(peer.pub.Bytes()), "day": pkcs8Of(t, day), "jobs": jobs}))
	var back []struct {
		Plaintext Bytes
		Envelope  *string
	}
	if err := json.Unmarshal(run(t, root, input, "node", "web/test/cross.mjs"), &back); err != nil {
		t.Fatal(err)
	}
	if len(back) != len(jobs) || len(jobs) < 90 {
		t.Fatalf("%d of %d came back", len(back), len(jobs))
	}
	opened := 0
	for i, b := range back {
		name := fmt.Sprintf("%s of %d bytes", jobs[i].Header["purpose"], len(plaintexts[i]))
		if !bytes.Equal(b.Plaintext, plaintexts[i]) {
			t.Errorf("%s: Node opened other bytes", name)
		}
		if jobs[i].Unsigned {
			continue
		}
		e, err := ParseEnvelope([]byte(*b.Envelope))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		to := peer
		if jobs[i].Self {
			to = ada
		}
		got, err := to.Open(e, ada.pub, day)
		if err != nil || !bytes.Equal(got, plaintexts[i]) || (e.Day != "") != jobs[i].Day {
			t.Errorf("%s: Go opened other bytes: %v", name, err)
		}
		if h := e.Header(); string(h.Purpose) != jobs[i].Header["purpose"] || h.Space != jobs[i].Header["space"] || h.Op != jobs[i].Header["op"] {
			t.Errorf("%s: the header became %+v", name, h)
		}
		if b := string(must(e.Marshal())); b != *back[i].Envelope {
			t.Errorf("%s: Node writes\n%s\nGo\n%s", name, *back[i].Envelope, b)
		}
		opened++
	}
	t.Logf("Node opened %d, Go %d", len(back), opened)
}
