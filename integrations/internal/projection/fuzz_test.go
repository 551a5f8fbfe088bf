package projection

import "testing"

var fuzzSpecs = []Spec{
	{Fields: []string{"a", "b.c", "d.e.f"}},
	{Root: "data", Fields: []string{"a", "b.c", "d.<any>.a"}, Captures: []Capture{{Path: "data.a"}, {Path: "b.c", Last: true}}},
	{Fields: []string{"<any>"}, Captures: []Capture{{Path: "a"}, {Path: "a.b"}}},
	{Captures: []Capture{{Path: "message"}, {Path: "errors.message", Last: true}, {Path: "a"}}},
	{Fields: []string{"m.<any>.x", "m.k.y", "a.b"}},
	faultSpec,
}

// FuzzProjection compares with a projection that is plainly right.
func FuzzProjection(f *testing.F) {
	var seeds []string
	for _, c := range picks {
		seeds = append(seeds, c.in)
	}
	for _, c := range faults {
		seeds = append(seeds, c.in)
	}
	seeds = append(seeds, sample)
	if len(picks) == 0 || len(faults) == 0 {
		f.Fatal("no seeds")
	}
	for i, s := range seeds {
		f.Add([]byte(s), uint8(i))
	}
	f.Fuzz(func(t *testing.T, data []byte, which uint8) {
		differential(t, fuzzSpecs[int(which)%len(fuzzSpecs)], data)
	})
}
