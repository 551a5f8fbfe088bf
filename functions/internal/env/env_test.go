package env

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func reader(vars map[string]string) *Reader { return New(func(n string) string { return vars[n] }) }

func TestReader(t *testing.T) {
	r := reader(map[string]string{
		Services: " a, b ,,c", Apps: "a=one, b=t=wo", AllowWiderRevoke: "true", SecretCache: "300", PublicURL: " https://x.example ",
	})
	for _, c := range []struct{ got, want any }{
		{r.List(Services), []string{"a", "b", "c"}},
		{r.List(Refused), []string{}},
		{r.Map(Apps), map[string]string{"a": "one", "b": "t=wo"}},
		{r.Bool(AllowWiderRevoke), true},
		{r.Seconds(SecretCache, 10, 3600), 5 * time.Minute},
		{r.Seconds(Stack, 10, 3600), time.Duration(0)},
		{r.Required(PublicURL), "https://x.example"},
		{r.ServiceIDs(func(string) bool { return true }), []string{"a", "b", "c"}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("got %#v, want %#v", c.got, c.want)
		}
	}
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}

// TestFaults: all of them at once, each by its variable, none with its value.
func TestFaults(t *testing.T) {
	r := reader(map[string]string{
		Services: "a,a,marker", Apps: "a,b=", AllowWiderRevoke: "marker", SecretCache: "marker",
	})
	r.Map(Apps)
	r.Bool(AllowWiderRevoke)
	r.Seconds(SecretCache, 10, 3600)
	r.Required(StateKey)
	r.ServiceIDs(func(id string) bool { return id == "a" })
	want := []string{
		"CONNECT_APPS: entry 1 is not name=value, each name once",
		"CONNECT_APPS: entry 2 is not name=value, each name once",
		"CONNECT_ALLOW_WIDER_REVOKE: is neither true nor false",
		"CONNECT_SECRET_CACHE_SECONDS: is not a number of seconds from 10 to 3600",
		"CONNECT_STATE_KEY: is not set",
		"CONNECT_SERVICES: entry 2 stands there twice",
		"CONNECT_SERVICES: entry 2 is no service of the registry",
	}
	if got := r.Err().Error(); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}
