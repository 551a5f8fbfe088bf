package awssecrets

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/elevenmessenger/connect/broker"
)

// TestEndpoint holds the addresses of regions against the SDK's rules.
func TestEndpoint(t *testing.T) {
	for _, region := range []string{
		"us-east-1", "us-west-2", "eu-central-1", "eu-north-1", "ap-southeast-5", "me-central-1", "mx-central-1", "il-central-1", "us-gov-west-1", "us-gov-east-1",
		"cn-north-1", "cn-northwest-1", "eusc-de-east-1", "us-iso-east-1", "us-iso-west-1", "us-isob-east-1", "us-isof-south-1", "us-isof-east-1", "eu-isoe-west-1",
	} {
		want, err := secretsmanager.NewDefaultEndpointResolverV2().ResolveEndpoint(context.Background(), secretsmanager.EndpointParameters{Region: &region})
		if err != nil {
			t.Fatal(err)
		}
		if got := (&Client{Region: region}).endpoint(); got != want.URI.String() {
			t.Errorf("%s: %s, the SDK asks %s", region, got, &want.URI)
		}
	}
}

// TestQuestion holds what is sent against what the SDK sends: the same question, signed for
// the same service, region and headers.
func TestQuestion(t *testing.T) {
	var seen []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		scope := regexp.MustCompile(`Credential=AKIAFAKE/\d{8}(\S+)`).FindStringSubmatch(r.Header.Get("Authorization"))
		signed := regexp.MustCompile(`SignedHeaders=(\S+), Signature=[0-9a-f]{64}$`).FindStringSubmatch(r.Header.Get("Authorization"))
		if scope == nil || signed == nil {
			t.Errorf("signed so: %s", r.Header.Get("Authorization"))
			return
		}
		// What the SDK's middleware adds for AWS's statistics is not ours to send.
		headers := strings.ReplaceAll(strings.ReplaceAll(signed[1], "amz-sdk-invocation-id;", ""), "amz-sdk-request;", "")
		seen = append(seen, strings.Join([]string{r.Method, r.URL.Path, r.Header.Get("X-Amz-Target"), r.Header.Get("Content-Type"), r.Header.Get("X-Amz-Security-Token"), scope[1], headers, string(body)}, "\n"))
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		io.WriteString(w, `{"SecretString":"x"}`)
	}))
	defer s.Close()
	id, stage := `connect/oauth/a"b`, current
	if _, err := sdk(s.URL).GetSecretValue(context.Background(), &secretsmanager.GetSecretValueInput{SecretId: &id, VersionStage: &stage}); err != nil {
		t.Fatal(err)
	}
	if text, err := clientOf(t, s.URL).value(context.Background(), id, stage); err != nil || text != "x" {
		t.Fatalf("%q %v", text, err)
	}
	if len(seen) != 2 || seen[0] != seen[1] {
		t.Errorf("the SDK and we send\n%s", strings.Join(seen, "\n\n"))
	}
}

// TestAnswers: each answer is a value, that there is none, or an error that holds nothing of it.
func TestAnswers(t *testing.T) {
	const marker = "zq9marker"
	var status int
	var header, body string
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if header != "" {
			w.Header().Set("X-Amzn-ErrorType", header)
		}
		w.Header().Set("Location", "/"+marker)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	defer s.Close()
	c := clientOf(t, s.URL)
	for _, a := range []struct {
		status       int
		header, body string
		code         string // "absent": ErrNoClient
		asked        int
	}{
		{400, "", `{"__type":"com.amazonaws.secretsmanager#ResourceNotFoundException"}`, "absent", 1},
		{400, "ResourceNotFoundException:http://internal.amazon.com/coral/com.amazonaws.secretsmanager/", `{}`, "absent", 1},
		{400, "", `{"__type":"InvalidRequestException","Message":"` + marker + `"}`, "absent", 1},
		{400, "", `{"__type":"AccessDeniedException","message":"` + marker + `"}`, "AccessDeniedException", 1},
		{400, "ThrottlingException", ``, "ThrottlingException", 2},
		{400, "", `{"__type":"` + marker + `"}`, "an error", 1},
		{503, "", `<html>` + marker, "", 2},
		{500, "", `{"__type":"InternalServiceError"}`, "InternalServiceError", 2},
		{200, "", `{"SecretBinary":"` + marker + `"}`, "a secret that is not text", 1},
		{200, "", `{"SecretString":null}`, "a secret that is not text", 1},
		{200, "", `{"SecretString":"` + marker, "", 1},
		{200, "", `{"SecretString":"` + marker + strings.Repeat("x", maxAnswer) + `"}`, "", 1},
		{204, "", ``, "", 1},
		{307, "", ``, "", 1},
		{403, "", marker, "", 1},
	} {
		status, header, body, asked = a.status, a.header, a.body, 0
		text, err := c.value(context.Background(), "x", current)
		var e *Error
		switch {
		case asked != a.asked:
			t.Errorf("%d %.80s: asked %d times, want %d", a.status, a.body, asked, a.asked)
		case a.code == "absent":
			if !errors.Is(err, broker.ErrNoClient) {
				t.Errorf("%d %.80s: %v, want ErrNoClient", a.status, a.body, err)
			}
		case !errors.As(err, &e) || e.Code != a.code || text != "" || strings.Contains(err.Error(), marker):
			t.Errorf("%d %.80s: %q %v, want an Error with the code %q", a.status, a.body, text, err, a.code)
		}
	}
}

// FuzzErrorCode: a code never holds what stands around it, and only known ones are repeated.
func FuzzErrorCode(f *testing.F) {
	for _, s := range []string{"", "ThrottlingException", "a.b#ResourceNotFoundException", "InvalidRequestException:http://x/", "#", ":", "a#b#c:d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		code := errorCode(s)
		if strings.ContainsAny(code, "#:") {
			t.Errorf("%q: the code is %q", s, code)
		}
		var e *Error
		if err := refusal(code); errors.As(err, &e) && e.Code != "" && e.Code != "an error" && e.Code != code {
			t.Errorf("%q: %v", s, err)
		}
	})
}
