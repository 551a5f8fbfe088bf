package integrations

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/elevenmessenger/connect/integrations/internal/projection"
)

// A Result is what an operation gave back.
type Result struct {
	JSON   json.RawMessage // what was picked; null where the root is null or nothing flows back
	Next   *NextPage       // how to ask for the next page; nil at the end of the list
	Size   int             // bytes of JSON
	Status int             // the HTTP status
	Tries  int             // how often it was sent
	Limits RateLimit       // what the service says of its rate limit
}

// NextPage is the arg that asks the same operation for the next page. It marshals as
// {"arg": value}.
type NextPage struct {
	Arg   string
	Value string // in the arg's one form

	number bool
}

// MarshalJSON writes {"arg": value}, a whole number as one.
func (n NextPage) MarshalJSON() ([]byte, error) {
	if n.number {
		return json.Marshal(map[string]json.Number{n.Arg: json.Number(n.Value)})
	}
	return json.Marshal(map[string]string{n.Arg: n.Value})
}

// RateLimit is what the service's headers say.
type RateLimit struct {
	Remaining int       // calls that remain; -1 where the service does not say
	Reset     time.Time // when the count starts anew; zero where it does not say
}

func (m *Manifest) rateLimit(h http.Header, now time.Time) (l RateLimit) {
	first := func(names ...string) string {
		for _, n := range names {
			if v := h.Get(n); n != "" && v != "" {
				return strings.TrimSpace(v)
			}
		}
		return ""
	}
	l = RateLimit{Remaining: -1}
	remaining, reset, unit := "", "", ""
	if m.Limits != nil && m.Limits.Remaining != "" {
		remaining = first(m.Limits.Remaining)
	} else {
		remaining = first("X-RateLimit-Remaining", "RateLimit-Remaining")
	}
	if m.Limits != nil && m.Limits.Reset != "" {
		reset, unit = first(m.Limits.Reset), m.Limits.Unit
	} else {
		reset = first("X-RateLimit-Reset", "RateLimit-Reset")
	}
	if n, err := strconv.Atoi(remaining); err == nil && n >= 0 {
		l.Remaining = n
	}
	n, err := strconv.ParseInt(reset, 10, 64)
	if err != nil || n <= 0 || n > 1<<52 {
		return l
	}
	// A reset beyond a century is a misread number, and no time that JSON can hold.
	defer func() {
		if l.Reset.After(now.AddDate(100, 0, 0)) {
			l.Reset = time.Time{}
		}
	}()
	if unit == "" { // the common headers hold either of three; their sizes tell them apart
		switch {
		case n > 1e11:
			unit = "epoch_ms"
		case n > 1e8:
			unit = "epoch_s"
		default:
			unit = "s_from_now"
		}
	}
	switch unit {
	case "epoch_ms":
		l.Reset = time.UnixMilli(n)
	case "epoch_s":
		l.Reset = time.Unix(n, 0)
	default:
		l.Reset = now.Add(time.Duration(min(n, 1<<31)) * time.Second)
	}
	return l
}

// retryAfter reads Retry-After (RFC 9110, section 10.2.3): seconds or a date.
func retryAfter(h http.Header, now time.Time) time.Time {
	v := strings.TrimSpace(h.Get("Retry-After"))
	var at time.Time
	if n, err := strconv.ParseInt(v, 10, 32); err == nil && n >= 0 {
		at = now.Add(time.Duration(n) * time.Second)
	} else if t, err := http.ParseTime(v); err == nil {
		at = t
	}
	return at
}

// nextPage reads how the next page is asked for; why says what is wrong with the answer.
func (c *Call) nextPage(h http.Header, out projection.Output) (n *NextPage, why string) {
	spec := c.Op.Next
	if spec == nil {
		return nil, ""
	}
	arg := c.Op.Args.Get(spec.Arg)
	caps := c.Op.captures.next
	capture := func(i int) projection.Value {
		if i < 0 {
			return projection.Value{}
		}
		return out.Captures[i]
	}
	val := ""
	switch spec.Style {
	case "link":
		target, ok := nextLink(h.Values("Link"))
		if !ok {
			return nil, ""
		}
		if val, ok = queryValue(target, c.Op.linkParam()); !ok {
			return nil, "its link to the next page does not hold the value of " + spec.Arg
		}
	case "cursor":
		if spec.More != "" && capture(caps.more).Kind != 't' {
			return nil, ""
		}
		v := capture(caps.path)
		if !v.Found || v.Empty || v.Kind == 'n' {
			return nil, ""
		}
		if v.Kind != '"' && v.Kind != '0' {
			return nil, "its next cursor is neither text nor number"
		}
		if v.Cut {
			return nil, "its next cursor is too long"
		}
		val = v.Text
	case "last":
		if capture(caps.more).Kind != 't' || out.Items == 0 {
			return nil, ""
		}
		v := capture(caps.field)
		if v.Kind != '"' && v.Kind != '0' || v.Cut || v.Met < out.Items {
			return nil, "an item does not hold what the next page begins after"
		}
		val = v.Text
	case "page":
		here := c.intArg(spec.Arg, 1)
		if spec.Pages != "" {
			v := capture(caps.pages)
			pages, err := strconv.ParseInt(v.Text, 10, 64)
			if err != nil || v.Kind != '0' {
				return nil, "its number of pages is missing"
			}
			if here >= pages {
				return nil, ""
			}
		} else if out.Items < spec.Size {
			return nil, ""
		}
		if here == math.MaxInt64 {
			return nil, ""
		}
		val = strconv.FormatInt(here+1, 10)
	}
	if val == "" {
		return nil, ""
	}
	cv, bad := arg.canonical(val)
	if bad != "" {
		return nil, "the next page it names is no value of " + spec.Arg
	}
	// A list that does not advance would never end.
	if now, ok := c.values[spec.Arg]; ok && now.text == cv.text {
		return nil, ""
	}
	return &NextPage{Arg: spec.Arg, Value: cv.text, number: arg.Kind() == "integer"}, ""
}
