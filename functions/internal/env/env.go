// Package env reads the functions' environment, which template.yaml sets from its
// parameters. It imports nothing of the broker's, so that a function that needs no secret
// links none of it.
package env

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names of the variables. A test holds them and template.yaml together.
const (
	PublicURL        = "CONNECT_PUBLIC_URL"           // the broker's own origin; empty: the gateway's own name
	ReturnOrigins    = "CONNECT_RETURN_ORIGINS"       // a list; empty: any https origin
	Services         = "CONNECT_SERVICES"             // a list of service ids; empty: none
	InstanceKeys     = "CONNECT_INSTANCE_KEYS"        // a list of kid:key
	Refused          = "CONNECT_REFUSED"              // a list of instances and token ids
	Apps             = "CONNECT_APPS"                 // a list of service=name
	AllowWiderRevoke = "CONNECT_ALLOW_WIDER_REVOKE"   // true or false
	SecretPrefix     = "CONNECT_SECRET_PREFIX"        // of the clients' secrets
	SecretCache      = "CONNECT_SECRET_CACHE_SECONDS" // how long a client is taken as known
	StateKey         = "CONNECT_STATE_KEY"            // the state key's secret, by ARN
	WrappingKey      = "CONNECT_WRAPPING_KEY"         // the wrapping key's secret, by ARN
	Stack            = "CONNECT_STACK"                // the stack's name, in metrics
)

// A Reader reads variables and collects what is wrong with them: an operator sees all of it
// at once. No message repeats a value.
type Reader struct {
	get    func(string) string
	faults []error
}

// New returns a Reader over a function like os.Getenv.
func New(getenv func(string) string) *Reader { return &Reader{get: getenv} }

// Err returns everything that was wrong.
func (r *Reader) Err() error { return errors.Join(r.faults...) }

// Fault notes that something is wrong with a variable.
func (r *Reader) Fault(name, format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
}

// Text returns a variable.
func (r *Reader) Text(name string) string { return strings.TrimSpace(r.get(name)) }

// Required returns a variable that must be there.
func (r *Reader) Required(name string) string {
	v := r.Text(name)
	if v == "" {
		r.Fault(name, "is not set")
	}
	return v
}

// List returns the parts of a variable that commas separate, never nil.
func (r *Reader) List(name string) []string {
	list := []string{}
	for i, s := range strings.Split(r.get(name), ",") {
		switch s = strings.TrimSpace(s); {
		case s == "":
		case slices.Contains(list, s):
			r.Fault(name, "entry %d stands there twice", i+1)
		default:
			list = append(list, s)
		}
	}
	return list
}

// Map returns a variable that is a list of name=value.
func (r *Reader) Map(name string) map[string]string {
	m := make(map[string]string)
	for i, s := range r.List(name) {
		k, v, ok := strings.Cut(s, "=")
		if _, twice := m[k]; !ok || k == "" || v == "" || twice {
			r.Fault(name, "entry %d is not name=value, each name once", i+1)
			continue
		}
		m[k] = v
	}
	return m
}

// Bool returns a variable that is true or false; empty is false.
func (r *Reader) Bool(name string) bool {
	switch r.Text(name) {
	case "true":
		return true
	case "", "false":
		return false
	}
	r.Fault(name, "is neither true nor false")
	return false
}

// Seconds returns a variable as a duration, between low and high; empty is zero.
func (r *Reader) Seconds(name string, low, high int) time.Duration {
	text := r.Text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		r.Fault(name, "is not a number of seconds from %d to %d", low, high)
		return 0
	}
	return time.Duration(n) * time.Second
}

// ServiceIDs returns the services that are offered, each of which known has.
func (r *Reader) ServiceIDs(known func(id string) bool) []string {
	list := r.List(Services)
	for i, id := range list {
		if !known(id) {
			r.Fault(Services, "entry %d is no service of the registry", i+1)
		}
	}
	return list
}
