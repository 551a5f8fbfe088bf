package awssecrets

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/elevenmessenger/connect/broker"
)

// A Client reads the values of secrets: Secrets Manager's GetSecretValue and nothing else. It
// is one signed POST, and the SDK's signer signs it. The SDK's own client of the service makes
// a function, and its start, a tenth larger.
type Client struct {
	// Region is where the secrets are.
	Region string
	// Endpoint is the address that is asked; "" means the region's own.
	Endpoint string
	// Credentials sign the questions. Outside Lambda those of the SDK's config.LoadDefaultConfig
	// serve; they cache what they got.
	Credentials aws.CredentialsProvider
	// Transport sends them; nil means http.DefaultTransport.
	Transport http.RoundTripper
}

// NewClient makes a client of a Lambda function's own environment: region, credentials and,
// where it is set, the endpoint. The SDK's default chain (config.LoadDefaultConfig) looks in
// more places, and makes a function two megabytes larger and its start nearly twice as long.
// Nothing is sent here.
func NewClient(getenv func(string) string) (*Client, error) {
	region := getenv("AWS_REGION")
	if region == "" {
		region = getenv("AWS_DEFAULT_REGION")
	}
	switch {
	case region == "":
		return nil, errors.New("awssecrets: AWS_REGION is not set")
	case strings.Trim(region, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
		return nil, errors.New("awssecrets: AWS_REGION is not the name of a region")
	}
	c := &Client{
		Region: region,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			c := aws.Credentials{
				AccessKeyID: getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: getenv("AWS_SESSION_TOKEN"),
				Source: "environment",
			}
			if !c.HasKeys() {
				return c, errors.New("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set")
			}
			return c, nil
		}),
		// One connection for a process that asks once in five minutes. It is not kept for
		// long: a frozen function would find it dead, and only by using it.
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext,
			MaxIdleConnsPerHost: 2, IdleConnTimeout: 10 * time.Second, TLSHandshakeTimeout: time.Second, ResponseHeaderTimeout: time.Second,
		},
	}
	for _, name := range []string{"AWS_ENDPOINT_URL_SECRETS_MANAGER", "AWS_ENDPOINT_URL"} {
		// The variables that the SDK's own configuration reads: without them a test would
		// talk to the real host.
		if c.Endpoint = getenv(name); c.Endpoint != "" {
			break
		}
	}
	return c, nil
}

// domains are those of the partitions whose names are not under amazonaws.com, by what their
// regions' names begin with. A test holds them against the SDK's rules.
var domains = []struct{ prefix, domain string }{
	{"cn-", "amazonaws.com.cn"},
	{"eusc-", "amazonaws.eu"},
	{"us-iso-", "c2s.ic.gov"},
	{"us-isob-", "sc2s.sgov.gov"},
	{"us-isof-", "csp.hci.ic.gov"},
	{"eu-isoe-", "cloud.adc-e.uk"},
}

func (c *Client) endpoint() string {
	if c.Endpoint != "" {
		return c.Endpoint
	}
	domain := "amazonaws.com"
	for _, d := range domains {
		if strings.HasPrefix(c.Region, d.prefix) {
			domain = d.domain
		}
	}
	return "https://secretsmanager." + c.Region + "." + domain
}

const (
	attempts = 2
	// backoff is the longest wait between them: the whole question has a second and a half.
	backoff = 100 * time.Millisecond
	// maxAnswer bounds an answer. A secret has at most 64 KiB, and its JSON six times that.
	maxAnswer = 1 << 19
)

// value returns one version of a secret. broker.ErrNoClient says that there is none; any other
// error is an Error. What may pass is tried twice: the question changes nothing.
func (c *Client) value(ctx context.Context, id, stage string) (string, error) {
	body, err := json.Marshal(struct {
		SecretID     string `json:"SecretId"`
		VersionStage string
	}{id, stage})
	if err != nil {
		return "", &Error{}
	}
	for try := 1; ; try++ {
		text, again, err := c.ask(ctx, body)
		if err == nil || !again || try == attempts {
			return text, err
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(rand.N(backoff)):
		}
	}
}

// ask asks once. again says that the same question may have another answer soon.
func (c *Client) ask(ctx context.Context, body []byte) (text string, again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint(), bytes.NewReader(body))
	if err != nil {
		return "", false, &Error{}
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "secretsmanager.GetSecretValue")
	req.Header.Set("User-Agent", "connect-broker")
	creds, err := c.Credentials.Retrieve(ctx)
	if err != nil {
		return "", false, &Error{}
	}
	digest := sha256.Sum256(body)
	if err := v4.NewSigner().SignHTTP(ctx, creds, req, hex.EncodeToString(digest[:]), "secretsmanager", c.Region, time.Now()); err != nil {
		return "", false, &Error{}
	}
	transport := c.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	resp, err := transport.RoundTrip(req) // no redirect is followed: it would carry the signature elsewhere
	if err != nil {
		return "", ctx.Err() == nil, &Error{}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", ctx.Err() == nil, &Error{}
	}
	var out struct {
		SecretString *string
		Type         string `json:"__type"`
	}
	bad := json.Unmarshal(data, &out) != nil
	switch {
	case resp.StatusCode == http.StatusOK && !bad && out.SecretString != nil:
		return *out.SecretString, false, nil
	case resp.StatusCode == http.StatusOK && !bad:
		return "", false, &Error{"a secret that is not text"}
	}
	code := errorCode(resp.Header.Get("X-Amzn-ErrorType"))
	if code == "" {
		code = errorCode(out.Type)
	}
	return "", passes(resp.StatusCode, code), refusal(code)
}

// errorCode takes the code out of what stands around it: namespace#Code:address.
func errorCode(s string) string {
	s, _, _ = strings.Cut(s, ":")
	if i := strings.LastIndexByte(s, '#'); i >= 0 {
		s = s[i+1:]
	}
	return strings.TrimSpace(s)
}

// passes says whether an error may be gone at the next attempt: what the SDK tries again.
func passes(status int, code string) bool {
	return slices.Contains([]int{500, 502, 503, 504}, status) ||
		slices.Contains([]string{"Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException", "RequestLimitExceeded",
			"RequestTimeout", "RequestTimeoutException"}, code)
}

// refusal is the error that a code means.
func refusal(code string) error {
	switch code {
	case "":
		return &Error{}
	case "ResourceNotFoundException", // no such secret, or no such stage
		"InvalidRequestException": // marked for deletion
		return broker.ErrNoClient
	case "AccessDeniedException", "DecryptionFailure", "InternalServiceError", "InvalidParameterException", "ThrottlingException",
		"UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException", "IncompleteSignature", "RequestExpired":
		return &Error{code}
	}
	return &Error{"an error"} // a code is a text from outside
}
