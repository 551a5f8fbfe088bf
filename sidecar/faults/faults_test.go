package faults_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// faults are all that can go wrong, in turn.
func faults() []fault {
	all := []fault{
		{row: "kill before the op is looked at", kill: "taken"},
		{row: "kill once a write is journalled", kill: "journal", op: "write"},
		{row: "kill before the broker is asked", kill: "rotate"},
		{row: "kill while the provider answers", kill: "asked"},
		{row: "kill as the answer arrives", kill: "answered"},
		{row: "kill once the pair is in the outbox", kill: "outbox"},
		{row: "kill before the pair is used (read)", kill: "use", op: "whoami"},
		{row: "kill before the pair is used (write)", kill: "use", op: "write"},
		{row: "kill once the pair was used (read)", kill: "used", op: "whoami"},
		{row: "kill once the pair was used (write)", kill: "used", op: "write"},
		{row: "kill before the result is sent", kill: "send"},
		{row: "kill as the result is sent", kill: "handled"},
		{row: "kill before the acknowledgement is taken", kill: "taken", ack: true},
		{row: "kill once the acknowledgement is taken", kill: "handled", ack: true},
		{row: "kill at any moment", kill: "random"},
		{row: "kill one of two processes while the provider answers", kill: "asked", two: true},
		{row: "kill one of two once the pair is in the outbox", kill: "outbox", two: true},
		{row: "kill one of two once the pair was used (write)", kill: "used", op: "write", two: true},
	}
	for _, hop := range []string{toBroker, brokerOut, toProvider} {
		for _, n := range []string{refuse, dropBefore, dropAfter, cutRequest, cutAnswer, flipRequest, flipAnswer, slow, tooSlow, idle} {
			all = append(all, fault{row: hop + ": " + n, hop: hop, net: n})
		}
	}
	for _, n := range []string{gatewayOf, gatewayIn, limitOf} {
		all = append(all, fault{row: toBroker + ": " + n, hop: toBroker, net: n})
	}
	return all
}

type row struct {
	name                         string
	runs, lost, twice, again, no int
	cut                          int // of the runs
}

// TestFaults kills the sidecar's process at every step of a rotation, breaks every exchange
// on the network, starts it again, and looks whether the member holds a pair that works.
func TestFaults(t *testing.T) {
	runs, workers := 459, 4
	switch {
	case os.Getenv("FAULT_RUNS") != "":
		runs = must(strconv.Atoi(os.Getenv("FAULT_RUNS")))
	case os.Getenv("SOAK") != "":
		runs = 10_000
	case testing.Short():
		runs = 102
	}
	all := faults()
	rows, off := make([]row, len(all)), row{name: "answer cut off on its way: member told to reconnect"}
	var mu sync.Mutex
	p := newProvider(t)
	next, notes := 0, []string{}
	t.Run("runs", func(t *testing.T) {
		for i := range workers {
			t.Run(fmt.Sprint("worker", i+1), func(t *testing.T) {
				t.Parallel()
				w := newWorker(t, p, uint64(i+1))
				for !t.Failed() {
					mu.Lock()
					n := next
					next++
					mu.Unlock()
					if n >= runs {
						break
					}
					k := n % len(all)
					res := w.run(all[k])
					mu.Lock()
					r := &rows[k]
					if !res.reached {
						r.no++
					}
					r.runs++
					if res.end == cutOff {
						r.cut++
						r = &off
						r.runs++
					}
					if res.end == lost {
						r.lost++
					}
					r.twice += res.twice
					r.again += res.again
					if res.note != "" {
						notes = append(notes, all[k].row+": "+res.note)
					}
					mu.Unlock()
				}
			})
		}
	})
	var b strings.Builder
	line := func(r row) {
		fmt.Fprintf(&b, "%-58s %6d %17d %21d %22d\n", r.name, r.runs, r.lost, r.twice, r.again)
	}
	fmt.Fprintf(&b, "%-58s %6s %17s %21s %22s\n", "fault", "runs", "credentials lost", "operations run twice", "tokens redeemed twice")
	sum := off
	sum.name = "all"
	for i, r := range rows {
		if r.runs >= 6 && r.no == r.runs {
			t.Errorf("%s: it never came", all[i].row)
		}
		sum.no += r.no
		r.name, r.runs = all[i].row, r.runs-r.cut
		line(r)
		sum.runs, sum.lost, sum.twice, sum.again = sum.runs+r.runs, sum.lost+r.lost, sum.twice+r.twice, sum.again+r.again
	}
	line(off)
	line(sum)
	b.WriteString("\ncut off on its way, by fault (with a grace, or a constant token, none is):\n")
	for i, r := range rows {
		if r.cut > 0 {
			fmt.Fprintf(&b, "%-58s %6d of %d\n", all[i].row, r.cut, r.runs)
		}
	}
	if sum.no > 0 {
		fmt.Fprintf(&b, "\nruns in which the fault did not come: %d\n", sum.no)
	}
	t.Logf("\n%s", b.String())
	if sum.lost+sum.twice+sum.again > 0 {
		t.Errorf("%d credentials lost, %d operations run twice, %d tokens redeemed twice:\n%s", sum.lost, sum.twice, sum.again, strings.Join(notes, "\n"))
	}
}
