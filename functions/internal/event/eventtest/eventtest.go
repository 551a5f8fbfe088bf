// Package eventtest makes events as the gateways make them of a request, from Amazon's
// documentation of each.
package eventtest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Kinds are the shapes of events.
var Kinds = []string{"http-2.0", "url-2.0", "http-1.0", "rest", "alb", "alb-single"}

// What the gateways say of a request.
const (
	Domain    = "abc123.execute-api.eu-central-1.amazonaws.com"
	Address   = "203.0.113.7"
	RequestID = "JKJaXmPLvHcESHA="
)

// A Request is what a client sends.
type Request struct {
	Method string
	Target string // path and query, as they stand in the request line
	Header http.Header
	Body   []byte
	Stage  string // "" means $default, or for a REST API prod
	Domain string // "" means the constant
}

// Event returns the event that a gateway of a kind makes of r.
func Event(kind string, r Request) []byte {
	m := map[string]any{}
	path, query, hasQuery := strings.Cut(r.Target, "?")
	decoded, err := url.PathUnescape(path)
	if err != nil {
		decoded = path
	}
	if r.Stage == "" {
		r.Stage = "$default"
		if kind == "rest" {
			r.Stage = "prod"
		}
	}
	if r.Domain == "" {
		r.Domain = Domain
	}
	header := make(http.Header)
	for k, v := range r.Header {
		header[http.CanonicalHeaderKey(k)] = v
	}
	header.Set("Host", r.Domain)
	header.Set("X-Forwarded-For", Address)
	header.Set("X-Forwarded-Proto", "https")
	if len(r.Body) > 0 {
		header.Set("Content-Length", fmt.Sprint(len(r.Body)))
	}
	m["isBase64Encoded"] = false
	if ct := header.Get("Content-Type"); len(r.Body) > 0 && !strings.HasPrefix(ct, "application/json") && !strings.HasPrefix(ct, "text/") {
		m["body"], m["isBase64Encoded"] = base64.StdEncoding.EncodeToString(r.Body), true
	} else if len(r.Body) > 0 {
		m["body"] = string(r.Body)
	} else if kind == "http-1.0" || kind == "rest" {
		m["body"] = nil
	} else if strings.HasPrefix(kind, "alb") {
		m["body"] = ""
	}
	context := map[string]any{}
	m["requestContext"] = context
	switch kind {
	case "http-2.0", "url-2.0":
		inPath := r.Stage
		if kind == "url-2.0" {
			r.Domain = "u7hxample.lambda-url.eu-central-1.on.aws"
			header.Set("Host", r.Domain)
			decoded = path
		}
		if inPath != "$default" {
			decoded = "/" + inPath + decoded
		}
		m["version"], m["routeKey"], m["rawPath"], m["rawQueryString"] = "2.0", "$default", decoded, query
		flat := map[string]string{}
		for k, v := range header {
			if k == "Cookie" {
				var list []string
				for _, line := range v {
					list = append(list, strings.Split(line, "; ")...)
				}
				m["cookies"] = list
				if kind == "url-2.0" {
					flat["cookie"] = strings.Join(list, "; ")
				}
				continue
			}
			flat[strings.ToLower(k)] = strings.Join(v, ",")
		}
		m["headers"] = flat
		context["accountId"], context["apiId"], context["stage"] = "123456789012", strings.SplitN(r.Domain, ".", 2)[0], r.Stage
		context["domainName"], context["requestId"], context["routeKey"] = r.Domain, RequestID, "$default"
		context["time"], context["timeEpoch"] = "01/Dec/2026:12:00:00 +0000", 1796126400000
		context["http"] = map[string]string{"method": r.Method, "path": decoded, "protocol": "HTTP/1.1", "sourceIp": Address, "userAgent": header.Get("User-Agent")}
	case "http-1.0", "rest":
		if kind == "http-1.0" {
			m["version"] = "1.0"
			if r.Stage != "$default" {
				decoded = "/" + r.Stage + decoded
			}
		}
		m["httpMethod"], m["path"], m["resource"] = r.Method, decoded, "/{proxy+}"
		fill(m, header, query, hasQuery, false)
		context["accountId"], context["apiId"], context["stage"] = "123456789012", "abc123", r.Stage
		context["domainName"], context["requestId"], context["httpMethod"] = r.Domain, RequestID, r.Method
		context["path"], context["resourcePath"], context["protocol"] = decoded, "/{proxy+}", "HTTP/1.1"
		context["identity"] = map[string]any{"sourceIp": Address, "userAgent": header.Get("User-Agent"), "accessKey": nil}
		m["pathParameters"], m["stageVariables"] = map[string]string{"proxy": strings.TrimPrefix(decoded, "/")}, nil
	case "alb", "alb-single":
		m["httpMethod"], m["path"] = r.Method, path
		context["elb"] = map[string]string{"targetGroupArn": "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/connect/49e9d65c45c6791a"}
		lower := make(http.Header)
		for k, v := range header {
			lower[strings.ToLower(k)] = v
		}
		fill(m, lower, query, hasQuery, true)
		if kind == "alb-single" {
			delete(m, "multiValueHeaders")
			delete(m, "multiValueQueryStringParameters")
		} else {
			delete(m, "headers")
			delete(m, "queryStringParameters")
		}
	default:
		panic("eventtest: no kind " + kind)
	}
	out, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		panic(err)
	}
	return append(out, '\n')
}

// fill fills the maps of payload 1.0 and of load balancers: of several values the single
// maps have the last.
func fill(m map[string]any, header http.Header, query string, hasQuery, encoded bool) {
	one, multi := map[string]string{}, map[string][]string{}
	for k, v := range header {
		one[k], multi[k] = v[len(v)-1], v
	}
	m["headers"], m["multiValueHeaders"] = one, multi
	var qs map[string]string
	var mqs map[string][]string
	if hasQuery && query != "" {
		qs, mqs = map[string]string{}, map[string][]string{}
		for part := range strings.SplitSeq(query, "&") {
			k, v, _ := strings.Cut(part, "=")
			if !encoded {
				k, _ = url.QueryUnescape(k)
				v, _ = url.QueryUnescape(v)
			}
			qs[k] = v
			mqs[k] = append(mqs[k], v)
		}
	} else if encoded {
		qs, mqs = map[string]string{}, map[string][]string{}
	}
	m["queryStringParameters"], m["multiValueQueryStringParameters"] = qs, mqs
}

// A Response is what a gateway makes of an answer.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Parse reads an answer as the gateway of a kind does, and refuses what it would not take.
func Parse(kind string, answer []byte) (*Response, error) {
	var a struct {
		StatusCode        int                 `json:"statusCode"`
		StatusDescription string              `json:"statusDescription"`
		Headers           map[string]string   `json:"headers"`
		MultiValueHeaders map[string][]string `json:"multiValueHeaders"`
		Cookies           []string            `json:"cookies"`
		Body              string              `json:"body"`
		IsBase64Encoded   bool                `json:"isBase64Encoded"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, err
	}
	r := &Response{Status: a.StatusCode, Header: make(http.Header), Body: []byte(a.Body)}
	if a.StatusCode < 200 || a.StatusCode > 599 {
		return nil, fmt.Errorf("status %d", a.StatusCode)
	}
	v2 := strings.HasSuffix(kind, "-2.0")
	switch {
	case v2 && a.MultiValueHeaders != nil:
		return nil, fmt.Errorf("payload 2.0 has no multiValueHeaders")
	case !v2 && a.Cookies != nil:
		return nil, fmt.Errorf("%s has no cookies", kind)
	case kind == "alb" && a.Headers != nil, kind == "alb-single" && a.MultiValueHeaders != nil:
		return nil, fmt.Errorf("%s: the wrong kind of headers", kind)
	case strings.HasPrefix(kind, "alb") && !strings.HasPrefix(a.StatusDescription, fmt.Sprint(a.StatusCode)):
		return nil, fmt.Errorf("%s: statusDescription %q", kind, a.StatusDescription)
	}
	for _, k := range slices.Sorted(maps.Keys(a.Headers)) {
		r.Header.Add(k, a.Headers[k])
	}
	for k, v := range a.MultiValueHeaders {
		r.Header[http.CanonicalHeaderKey(k)] = append(r.Header[http.CanonicalHeaderKey(k)], v...)
	}
	for _, c := range a.Cookies {
		r.Header.Add("Set-Cookie", c)
	}
	if a.IsBase64Encoded {
		var err error
		if r.Body, err = base64.StdEncoding.Strict().DecodeString(a.Body); err != nil {
			return nil, err
		}
	}
	return r, nil
}
