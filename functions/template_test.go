package functions_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/elevenmessenger/connect/broker/public"
	"github.com/elevenmessenger/connect/functions/internal/brokered"
	"github.com/elevenmessenger/connect/functions/internal/canary"
	"github.com/elevenmessenger/connect/functions/internal/configured"
	"github.com/elevenmessenger/connect/functions/internal/prebuilt"
)

var update = flag.Bool("update", false, "write generated files")

const (
	templateFile = "../template.yaml"
	canaryFile   = "../template-canary.yaml"
)

func readTemplate(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(templateFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestCanaryIsTheTemplate: template-canary.yaml is template.yaml plus the generator's lines.
func TestCanaryIsTheTemplate(t *testing.T) {
	source := readTemplate(t)
	want, err := canary.Template([]byte(source))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(canaryFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(canaryFile)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("template-canary.yaml is stale (%v); go test ./functions -run Canary -update writes it", err)
	}
	// Without the lines that came in, it is the file again, and they are few.
	have := strings.Split(string(got), "\n")
	for line := range strings.SplitSeq(source, "\n") {
		i := slices.Index(have, line)
		if i < 0 {
			t.Fatalf("a line is gone: %q", line)
		}
		have = slices.Delete(have, i, i+1)
	}
	if len(have) != 1+7+5+4 {
		t.Errorf("%d lines more than the template has:\n%s", len(have), strings.Join(have, "\n"))
	}
	for _, bad := range []string{strings.Replace(source, "      # canary: function\n", "", 1), source + "# canary: nothing\n"} {
		if _, err := canary.Template([]byte(bad)); err == nil {
			t.Error("a template with a marker missing or unknown is taken")
		}
	}
	// In each function, since SAM does not take it in Globals; and it reaches each version.
	tree := parse(t, string(got))
	for name, f := range ofType(tree, "AWS::Serverless::Function") {
		if s := text(dig(f, "Properties", "AutoPublishCodeSha256")); s != `{"Ref":"Revision"}` {
			t.Errorf("%s: AutoPublishCodeSha256 is %s", name, s)
		}
	}
	if faults := check(tree, true); len(faults) > 0 {
		t.Errorf("template-canary.yaml:\n%s", strings.Join(faults, "\n"))
	}
}

// TestTemplate holds template.yaml's rights, routes, numbers, names and logs.
func TestTemplate(t *testing.T) {
	if faults := check(parse(t, readTemplate(t)), false); len(faults) > 0 {
		t.Error(strings.Join(faults, "\n"))
	}
}

// mutations are faults that somebody could make, each with what a check says of it. Those
// that translated say are found in the translated template too.
var mutations = []struct {
	name, old, new, fault string
	translated            bool
}{
	{"any action", "Action: secretsmanager:GetSecretValue", "Action: secretsmanager:*", "wildcard", true},
	{"a mistyped action", "Action: secretsmanager:GetSecretValue", "Action: secretsmanager:GetSecretValues", "rights", true},
	{"another action", "Action: secretsmanager:GetSecretValue", "Action: [secretsmanager:GetSecretValue, secretsmanager:PutSecretValue]", "rights", true},
	{"any secret", "secret:${SecretPrefix}/*\"\n                - !Ref StateKey", "secret:*\"\n                - !Ref StateKey", "rights", true},
	{"any secret", "secret:${SecretPrefix}/*\"\n                - !Ref WrappingKey # un", "secret:*\"\n                - !Ref WrappingKey # un", "rights", true},
	{"a prefix cut short", "secret:${SecretPrefix}/*", "secret:${SecretPrefix}*", "wildcard", true},
	{"the state key for refresh", "- !Ref WrappingKey # unwraps", "- !Ref StateKey\n                - !Ref WrappingKey # unwraps", "rights", true},
	{"no wrapping key", "                - !Ref WrappingKey # wraps", "                # wraps", "rights", true},
	{"a key without its condition", "                Condition:\n                  StringEquals:\n                    kms:ViaService: !Sub \"secretsmanager.${AWS::Region}.amazonaws.com\"\n          - !Ref AWS::NoValue\n      Events:\n        Refresh", "          - !Ref AWS::NoValue\n      Events:\n        Refresh", "rights", true},
	{"another use of the key", "Action: kms:Decrypt", "Action: kms:GenerateDataKey", "rights", true},
	{"a managed policy", "      CodeUri: functions/registry/\n", "      CodeUri: functions/registry/\n      Policies: AmazonS3FullAccess\n", "rights", true},
	{"a right for config", "      CodeUri: functions/config/\n", "      CodeUri: functions/config/\n      Policies:\n        - Version: \"2012-10-17\"\n          Statement: [{Effect: Allow, Action: secretsmanager:GetSecretValue, Resource: !Ref StateKey}]\n", "rights", true},
	{"everything but", "              Action: secretsmanager:GetSecretValue\n", "              NotAction: iam:PassRole\n", "rights", true},
	{"a role of its own", "      CodeUri: functions/refresh/\n", "      CodeUri: functions/refresh/\n      Role: arn:aws:iam::123456789012:role/admin\n", "role", true},
	{"one more role", "  AlarmTopic:\n", "  Extra:\n    Type: AWS::IAM::Role\n    Properties: {AssumeRolePolicyDocument: {}}\n  AlarmTopic:\n", "role", true},
	{"a policy from the side", "  AlarmTopic:\n", "  Extra:\n    Type: AWS::IAM::Policy\n    Properties: {PolicyName: x, PolicyDocument: {}, Roles: [!Ref RegistryFunctionRole]}\n  AlarmTopic:\n", "AWS::IAM::Policy", true},
	{"a function URL", "      CodeUri: functions/refresh/\n", "      CodeUri: functions/refresh/\n      FunctionUrlConfig: {AuthType: NONE}\n", "FunctionUrlConfig", true},
	{"traces", "    MemorySize: 256\n", "    MemorySize: 256\n    Tracing: Active\n", "Tracing", true},
	{"CORS for all", "      FailOnWarnings: true\n", "      FailOnWarnings: true\n      CorsConfiguration: {AllowOrigins: [\"*\"]}\n", "CorsConfiguration", true},
	{"a throttle for no route", "        GET /oauth/{service}/callback:\n          T", "        GET /oauth/{service}/calback:\n          T", "throttle", true},
	{"a throttle with another parameter", "        POST /oauth/{service}/authorize:\n          T", "        POST /oauth/{id}/authorize:\n          T", "throttle", true},
	{"a word for a number", "          ThrottlingRateLimit: 10\n", "          ThrottlingRateLimit: ten\n", "throttle", true},
	{"the callback's throttle gone", "        GET /oauth/{service}/callback:\n          ThrottlingRateLimit: 10\n          ThrottlingBurstLimit: 20\n", "", "throttle", true},
	{"the path in the access log", "\"$context.requestId\"", "\"$context.path\"", "access log", true},
	{"the address in the access log", "\"errorType\":", "\"ip\":\"$context.identity.sourceIp\",\"errorType\":", "access log", true},
	{"an error's text in the access log", "$context.error.responseType", "$context.error.message", "access log", true},
	{"no access log", "        DestinationArn: !GetAtt AccessLogs.Arn\n", "", "access log", true},
	{"a variable that nobody reads", "          CONNECT_APPS: !Ref Apps\n", "          CONNECT_APP: !Ref Apps\n", "environment", true},
	{"a variable that is missing", "          CONNECT_REFUSED: !Ref RefusedInstances\n", "", "environment", true},
	{"a variable of the wrong parameter", "CONNECT_STATE_KEY: !Ref StateKey", "CONNECT_STATE_KEY: !Ref WrappingKey", "environment", true},
	{"a route that nobody serves", "Path: /api/revoke}", "Path: /api/revok}", "route", true},
	{"a route gone", "        Head:\n          Type: HttpApi\n          Properties: {ApiId: !Ref HttpApi, Method: HEAD, Path: /registry}\n", "", "route", true},
	{"a route at another function", "Method: GET, Path: /healthz", "Method: GET, Path: /api/refresh", "route", true},
	{"another method", "Method: POST, Path: /api/refresh", "Method: GET, Path: /api/refresh", "route", true},
	{"everything to one function", "Method: GET, Path: /registry}", "Method: ANY, Path: \"/{proxy+}\"}", "route", true},
	{"a stage in the path", "StageName: $default", "StageName: prod", "stage", true},
	{"a function that outlasts the API", "    Timeout: 15\n", "    Timeout: 30\n", "Timeout", true},
	{"a function that ends before the provider", "    Timeout: 15\n", "    Timeout: 10\n", "Timeout", true},
	{"another architecture", "Architectures: [arm64]", "Architectures: [x86_64]", "arm64", true},
	{"logs for ever", "{LogGroupName: !Sub \"/aws/lambda/${AWS::StackName}/refresh\", RetentionInDays: !Ref LogRetentionDays}", "{LogGroupName: !Sub \"/aws/lambda/${AWS::StackName}/refresh\"}", "retention", true},
	{"a log group that is not ours", "        LogGroup: !Ref RefreshLogs\n", "        LogGroup: /aws/lambda/other\n", "log group", true},
	{"a wrapping key that goes with the stack", "    DeletionPolicy: Retain\n", "", "WrappingKey", true},
	{"a wrapping key that an update drops", "    UpdateReplacePolicy: Retain\n", "", "WrappingKey", true},
	{"a key with a name", "      Description: !Sub \"Seals", "      Name: connect-state\n      Description: !Sub \"Seals", "Name", true},
	{"a short key", "        PasswordLength: 64 # letters", "        PasswordLength: 32 # letters", "PasswordLength", true},
	{"a client's secret as a resource", "  AlarmTopic:\n", "  GitHub:\n    Type: AWS::SecretsManager::Secret\n    Properties: {Description: x}\n  AlarmTopic:\n", "secret", true},
	{"CloudFront's log", "        Enabled: true\n", "        Enabled: true\n        Logging: {Bucket: x.s3.amazonaws.com}\n", "CloudFront", true},
	{"cookies in the cache's key", "CookiesConfig: {CookieBehavior: none}", "CookiesConfig: {CookieBehavior: all}", "CloudFront", true},
	{"the callback cached", "CachePolicyId: 4135ea2d-6df8-44a3-9df3-4b5a84be39ad", "CachePolicyId: 658327ea-f89d-4fab-a63d-7e88639e58f6", "CloudFront", true},
	{"a second behaviour", "          - PathPattern: /registry*\n", "          - PathPattern: /*\n", "CloudFront", true},
	{"an alarm that goes nowhere", "      Dimensions: [{Name: stack, Value: !Ref AWS::StackName}]\n      Statistic: Sum\n      Period: 300\n      EvaluationPeriods: 1\n      Threshold: 1\n      ComparisonOperator: GreaterThanOrEqualToThreshold\n      TreatMissingData: notBreaching\n      AlarmActions: !If [HasAlarmEmail, [!Ref AlarmTopic], !Ref AWS::NoValue]\n", "      Dimensions: [{Name: stack, Value: !Ref AWS::StackName}]\n      Statistic: Sum\n      Period: 300\n      EvaluationPeriods: 1\n      Threshold: 1\n      ComparisonOperator: GreaterThanOrEqualToThreshold\n", "alarm", true},
	{"an alarm that is gone", "  InvalidClient:\n    Type: AWS::CloudWatch::Alarm", "  InvalidClient:\n    Type: AWS::SNS::Topic", "alarm", false},
	{"a metric that nobody writes", "MetricName: InvalidClient", "MetricName: InvalidClients", "alarm", true},
	{"a level that drops the metrics", "AllowedValues: [DEBUG, INFO]", "AllowedValues: [DEBUG, INFO, WARN]", "LogLevel", true},
	{"a parameter without a pattern", "    AllowedPattern: ^(https://[a-z0-9.-]+)?$\n", "", "parameter", true},
	{"a parameter without a word", "    Description: For how many days logs are kept.\n", "", "parameter", true},
	{"a default that its pattern refuses", "    Default: connect/oauth\n", "    Default: connect/oauth/\n", "parameter", true},
	{"a prefix with a star", "^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", "^[A-Za-z0-9_*-]+(/[A-Za-z0-9_*-]+)*$", "SecretPrefix", true},
	{"no build", "    Metadata:\n      BuildMethod: go1.x\n      BuildProperties:\n        TrimGoPath: true\n    Properties:\n      Description: Refresh", "    Properties:\n      Description: Refresh", "BuildMethod", true},
	{"another folder", "CodeUri: functions/refresh/", "CodeUri: functions/config/", "CodeUri", false},
	{"a redirect address with a slash", "${Base}/oauth/SERVICE/callback", "${Base}/oauth/SERVICE/callback/", "RedirectUri", true},
	{"a secret on the command line", "--secret-string file://client.json\"\n      - !Sub", "--secret-string '{}'\"\n      - !Sub", "AddSecretCommand", true},
	{"the API's own name beside a domain", "DisableExecuteApiEndpoint: !If [DomainOnApi, true, false]", "DisableExecuteApiEndpoint: false", "DisableExecuteApiEndpoint", true},
	{"an alias in the file for everyone", "    MemorySize: 256\n", "    MemorySize: 256\n    AutoPublishAlias: live\n", "AutoPublishAlias", false},
}

// mutate returns the template with one mutation.
func mutate(t *testing.T, source string, i int) string {
	t.Helper()
	m := mutations[i]
	if !strings.Contains(source, m.old) {
		t.Fatalf("%s: the template has no\n%s", m.name, m.old)
	}
	return strings.Replace(source, m.old, m.new, 1)
}

// TestTemplateMutations: what TestTemplate is for, it finds.
func TestTemplateMutations(t *testing.T) {
	source := readTemplate(t)
	for i, m := range mutations {
		faults := check(parse(t, mutate(t, source, i)), false)
		if !strings.Contains(strings.Join(faults, "\n"), m.fault) {
			t.Errorf("%s: not found; want a fault about %q, got %q", m.name, m.fault, faults)
		}
	}
}

// TestTranslated: the policy test on what SAM makes of the templates, with the mutations.
func TestTranslated(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds")
	}
	python := pythonWith(t, "samtranslator", "cfnlint")
	source := readTemplate(t)
	files, dir := []string{templateFile, canaryFile}, t.TempDir()
	var which []int
	for i, m := range mutations {
		if !m.translated {
			continue
		}
		name := filepath.Join(dir, strconv.Itoa(i)+".yaml")
		if err := os.WriteFile(name, []byte(mutate(t, source, i)), 0o600); err != nil {
			t.Fatal(err)
		}
		files, which = append(files, name), append(which, i)
	}
	out, err := exec.Command(python, append([]string{"testdata/translate.py"}, files...)...).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr(err))
	}
	var list []struct {
		Template map[string]any
		Error    string
	}
	if err := json.Unmarshal(out, &list); err != nil || len(list) != len(files) {
		t.Fatalf("%v: %d templates for %d files", err, len(list), len(files))
	}
	for i := range 2 {
		if list[i].Error != "" {
			t.Fatalf("%s: %s", files[i], list[i].Error)
		}
		if faults := checkTranslated(list[i].Template, i == 1); len(faults) > 0 {
			t.Errorf("%s:\n%s", files[i], strings.Join(faults, "\n"))
		}
	}
	// A new Revision is a new version: its first ten characters are part of the name.
	for name := range folders {
		if ofType(list[1].Template, "AWS::Lambda::Version")[name+"Version0123456789"] == nil {
			t.Errorf("the canary's %s has no version named by Revision: %v", name, slices.Sorted(maps.Keys(ofType(list[1].Template, "AWS::Lambda::Version"))))
		}
	}
	found, refused := 0, 0
	for n, i := range which {
		got, m := list[n+2], mutations[i]
		switch {
		case got.Error != "": // SAM itself refuses
			refused++
		case len(checkTranslated(got.Template, false)) == 0:
			t.Errorf("%s: not found in the translated template", m.name)
		default:
			found++
		}
	}
	t.Logf("%d mutations: %d found in the translated template, %d refused by SAM itself", len(which), found, refused)
}

// TestCfnLint runs cfn-lint over both files.
func TestCfnLint(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds")
	}
	if _, err := exec.LookPath("cfn-lint"); err != nil {
		t.Skip("SKIPPED: cfn-lint is not on this machine; the template is checked by the Go tests alone")
	}
	out, err := exec.Command("cfn-lint", templateFile, canaryFile).CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// pythonWith returns a Python that has the modules, or skips and says what is missing.
func pythonWith(t *testing.T, modules ...string) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("SKIPPED: no Python on this machine, so no %s", strings.Join(modules, ", "))
	}
	if out, err := exec.Command(python, "-c", "import "+strings.Join(modules, ",")).CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Skipf("SKIPPED: this machine's Python lacks a module: %s", lines[len(lines)-1])
	}
	return python
}

func stderr(err error) string {
	if e, ok := err.(*exec.ExitError); ok {
		return string(e.Stderr)
	}
	return ""
}

// parse reads a template; a short tag becomes the function that it stands for.
func parse(t *testing.T, source string) map[string]any {
	t.Helper()
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(source), &n); err != nil {
		t.Fatalf("%v", err)
	}
	v, err := value(n.Content[0])
	if err != nil {
		t.Fatal(err)
	}
	return v.(map[string]any)
}

func value(n *yaml.Node) (any, error) {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return nil, fmt.Errorf("line %d: CloudFormation takes no anchors", n.Line)
	}
	var v any
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any)
		for i := 0; i < len(n.Content); i += 2 {
			e, err := value(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			if _, twice := m[n.Content[i].Value]; twice {
				return nil, fmt.Errorf("line %d: %s stands there twice", n.Content[i].Line, n.Content[i].Value)
			}
			m[n.Content[i].Value] = e
		}
		v = m
	case yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			e, err := value(c)
			if err != nil {
				return nil, err
			}
			list = append(list, e)
		}
		v = list
	default:
		if strings.HasPrefix(n.Tag, "!!") {
			if err := n.Decode(&v); err != nil {
				return nil, err
			}
			if i, ok := v.(int); ok {
				v = float64(i) // as JSON has it
			}
		} else {
			v = n.Value
		}
	}
	tag, short := strings.CutPrefix(n.Tag, "!")
	if !short || strings.HasPrefix(tag, "!") {
		return v, nil
	}
	switch tag {
	case "Ref", "Condition":
		return map[string]any{tag: v}, nil
	case "GetAtt":
		if s, ok := v.(string); ok {
			a, b, _ := strings.Cut(s, ".")
			v = []any{a, b}
		}
	}
	return map[string]any{"Fn::" + tag: v}, nil
}

func dig(v any, path ...string) any {
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[p]
	}
	return v
}

// text writes a value in one form, to compare and to print.
func text(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(v)
	return strings.TrimSpace(b.String())
}

func ofType(tree map[string]any, kind string) map[string]map[string]any {
	out := make(map[string]map[string]any)
	if all, ok := tree["Resources"].(map[string]any); ok {
		for name, r := range all {
			if m, ok := r.(map[string]any); ok && m["Type"] == kind {
				out[name] = m
			}
		}
	}
	return out
}

const (
	clientSecrets = `{"Fn::Sub":"arn:${AWS::Partition}:secretsmanager:${AWS::Region}:${AWS::AccountId}:secret:${SecretPrefix}/*"}`
	viaSecrets    = ` when {"StringEquals":{"kms:ViaService":{"Fn::Sub":"secretsmanager.${AWS::Region}.amazonaws.com"}}}`
)

// wantRights is every right there is: function, action, resource, condition.
var wantRights = []string{
	`OAuthCallbackFunction: secretsmanager:GetSecretValue on ` + clientSecrets,
	`OAuthCallbackFunction: secretsmanager:GetSecretValue on {"Ref":"StateKey"}`,
	`OAuthCallbackFunction: secretsmanager:GetSecretValue on {"Ref":"WrappingKey"}`,
	`OAuthCallbackFunction: if HasKmsKey: kms:Decrypt on {"Ref":"KmsKeyArn"}` + viaSecrets,
	`RefreshFunction: secretsmanager:GetSecretValue on ` + clientSecrets,
	`RefreshFunction: secretsmanager:GetSecretValue on {"Ref":"WrappingKey"}`,
	`RefreshFunction: if HasKmsKey: kms:Decrypt on {"Ref":"KmsKeyArn"}` + viaSecrets,
}

// rights lists what a policy list of a function allows, each right in wantRights' form. Any
// form that is not known there comes out as it stands, and so is a difference.
func rights(function string, policies any) []string {
	var out []string
	var walk func(prefix string, p any)
	walk = func(prefix string, p any) {
		m, ok := p.(map[string]any)
		if !ok {
			out = append(out, prefix+text(p))
			return
		}
		if cond, ok := m["Fn::If"].([]any); ok && len(m) == 1 && len(cond) == 3 && text(cond[2]) == `{"Ref":"AWS::NoValue"}` {
			walk(prefix+"if "+fmt.Sprint(cond[0])+": ", cond[1])
			return
		}
		if d, ok := m["PolicyDocument"]; ok { // translated
			walk(prefix, d)
			return
		}
		statements, ok := m["Statement"].([]any)
		if !ok || m["Version"] != "2012-10-17" || len(m) != 2 {
			out = append(out, prefix+text(p))
			return
		}
		for _, s := range statements {
			s, ok := s.(map[string]any)
			action, isOne := s["Action"].(string)
			known := []string{"Sid", "Effect", "Action", "Resource", "Condition"}
			if !ok || !isOne || s["Effect"] != "Allow" || slices.ContainsFunc(slices.Collect(maps.Keys(s)), func(k string) bool { return !slices.Contains(known, k) }) {
				out = append(out, prefix+text(s))
				continue
			}
			resources, isList := s["Resource"].([]any)
			if !isList {
				resources = []any{s["Resource"]}
			}
			for _, r := range resources {
				right := prefix + action + " on " + text(r)
				if c, ok := s["Condition"]; ok {
					right += " when " + text(c)
				}
				out = append(out, right)
			}
		}
	}
	switch p := policies.(type) {
	case nil:
	case []any:
		for _, e := range p {
			walk(function+": ", e)
		}
	default:
		walk(function+": ", p)
	}
	return out
}

// wantRoutes is every route, with the function that serves it.
var wantRoutes = map[string]string{
	"GET /registry": "RegistryFunction", "HEAD /registry": "RegistryFunction", "OPTIONS /registry": "RegistryFunction", "ANY /registry/{id}": "RegistryFunction",
	"GET /healthz": "RegistryFunction", "GET /api/oauth/config": "ConfigFunction", "HEAD /api/oauth/config": "ConfigFunction", "OPTIONS /api/oauth/config": "ConfigFunction",
	"GET /oauth/{service}/authorize": "OAuthCallbackFunction", "POST /oauth/{service}/authorize": "OAuthCallbackFunction", "GET /oauth/{service}/callback": "OAuthCallbackFunction",
	"POST /api/refresh": "RefreshFunction", "POST /api/revoke": "RefreshFunction",
}

var folders = map[string]string{"RegistryFunction": "registry", "ConfigFunction": "config", "OAuthCallbackFunction": "oauth-callback", "RefreshFunction": "refresh"}

// wantEnvironment is what each variable is made of.
var wantEnvironment = map[string]string{
	"CONNECT_STACK":                `{"Ref":"AWS::StackName"}`,
	"CONNECT_PUBLIC_URL":           `{"Fn::If":["HasPublicBaseUrl",{"Ref":"PublicBaseUrl"},{"Fn::If":["HasDomain",{"Fn::Sub":"https://${DomainName}"},""]}]}`,
	"CONNECT_SERVICES":             `{"Ref":"ServiceIds"}`,
	"CONNECT_RETURN_ORIGINS":       `{"Ref":"ReturnOrigins"}`,
	"CONNECT_INSTANCE_KEYS":        `{"Ref":"InstanceTokenKeys"}`,
	"CONNECT_REFUSED":              `{"Ref":"RefusedInstances"}`,
	"CONNECT_APPS":                 `{"Ref":"Apps"}`,
	"CONNECT_ALLOW_WIDER_REVOKE":   `{"Ref":"AllowWiderRevoke"}`,
	"CONNECT_SECRET_PREFIX":        `{"Ref":"SecretPrefix"}`,
	"CONNECT_SECRET_CACHE_SECONDS": `{"Ref":"SecretCacheSeconds"}`,
	"CONNECT_STATE_KEY":            `{"Ref":"StateKey"}`,
	"CONNECT_WRAPPING_KEY":         `{"Ref":"WrappingKey"}`,
}

var logFields = map[string]string{
	"requestId": "$context.requestId", "time": "$context.requestTime", "routeKey": "$context.routeKey", "status": "$context.status",
	"responseLatency": "$context.responseLatency", "responseLength": "$context.responseLength", "integrationStatus": "$context.integrationStatus",
	"errorType": "$context.error.responseType",
}

var allowedTypes = []string{
	"AWS::Serverless::HttpApi", "AWS::Serverless::Function", "AWS::SecretsManager::Secret", "AWS::Logs::LogGroup", "AWS::SNS::Topic", "AWS::CloudWatch::Alarm",
	"AWS::ApiGatewayV2::DomainName", "AWS::ApiGatewayV2::ApiMapping", "AWS::Route53::RecordSet", "AWS::Route53::RecordSetGroup", "AWS::CloudFront::CachePolicy", "AWS::CloudFront::Distribution",
}

// translatedTypes are what SAM makes of a function and an API.
var translatedTypes = []string{
	"AWS::Lambda::Function", "AWS::Lambda::Permission", "AWS::IAM::Role", "AWS::ApiGatewayV2::Api", "AWS::ApiGatewayV2::Stage",
}

// canaryTypes are what the canary has besides.
var canaryTypes = []string{"AWS::Lambda::Version", "AWS::Lambda::Alias", "AWS::CodeDeploy::Application", "AWS::CodeDeploy::DeploymentGroup"}

// A checker collects faults.
type checker struct{ faults []string }

func (c *checker) addf(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

func (c *checker) same(what string, got, want any) {
	if d := cmp.Diff(want, got); d != "" {
		c.addf("%s (-want +got):\n%s", what, d)
	}
}

// check returns what is wrong with a template as it is written.
func check(tree map[string]any, isCanary bool) []string {
	c := new(checker)
	c.common(tree, allowedTypes)
	global := dig(tree, "Globals", "Function").(map[string]any)
	known := []string{"Runtime", "Architectures", "Handler", "MemorySize", "Timeout", "LoggingConfig"}
	if isCanary {
		known = append(known, "AutoPublishAlias", "DeploymentPreference")
	}
	for k := range global {
		if !slices.Contains(known, k) {
			c.addf("Globals: %s", k)
		}
	}
	c.runs("Globals", global)
	var have []string
	routes := make(map[string]string)
	functions := ofType(tree, "AWS::Serverless::Function")
	if len(functions) != len(folders) {
		c.addf("%d functions", len(functions))
	}
	for name, f := range functions {
		p := f["Properties"].(map[string]any)
		known := []string{"Description", "CodeUri", "LoggingConfig", "Environment", "Policies", "Events", "ReservedConcurrentExecutions"}
		if isCanary {
			known = append(known, "AutoPublishCodeSha256")
		}
		for k := range p {
			if !slices.Contains(known, k) {
				c.addf("%s: %s (role, URL and the like are not for a function here)", name, k)
			}
		}
		if p["Role"] != nil {
			c.addf("%s: a role of its own", name)
		}
		if p["CodeUri"] != "functions/"+folders[name]+"/" {
			c.addf("%s: CodeUri %v", name, p["CodeUri"])
		}
		if text(f["Metadata"]) != `{"BuildMethod":"go1.x","BuildProperties":{"TrimGoPath":true}}` {
			c.addf("%s: BuildMethod: %s", name, text(f["Metadata"]))
		}
		have = append(have, rights(name, p["Policies"])...)
		c.environment(name, dig(p, "Environment", "Variables"))
		c.logs(tree, name, dig(p, "LoggingConfig", "LogGroup"))
		events, _ := p["Events"].(map[string]any)
		for _, e := range events {
			e := dig(e, "Properties").(map[string]any)
			key := fmt.Sprint(e["Method"], " ", e["Path"])
			if text(e["ApiId"]) != `{"Ref":"HttpApi"}` || routes[key] != "" {
				c.addf("route %s: %s", key, text(e))
			}
			routes[key] = name
		}
	}
	c.rights(have)
	c.routes(routes)
	api := dig(tree, "Resources", "HttpApi", "Properties").(map[string]any)
	for k := range api {
		if !slices.Contains([]string{"StageName", "Description", "FailOnWarnings", "DisableExecuteApiEndpoint", "DefaultRouteSettings", "RouteSettings", "AccessLogSettings"}, k) {
			c.addf("HttpApi: %s", k)
		}
	}
	c.stage(api, routes)
	if text(api["DisableExecuteApiEndpoint"]) != `{"Fn::If":["DomainOnApi",true,false]}` {
		c.addf("DisableExecuteApiEndpoint: %s", text(api["DisableExecuteApiEndpoint"]))
	}
	return c.faults
}

// checkTranslated returns what is wrong with what SAM made of it.
func checkTranslated(tree map[string]any, isCanary bool) []string {
	c := new(checker)
	types := slices.Concat(allowedTypes[2:], translatedTypes)
	if isCanary {
		types = append(types, canaryTypes...)
	}
	c.common(tree, types)
	var have []string
	roles := ofType(tree, "AWS::IAM::Role")
	wantRoles := []string{"ConfigFunctionRole", "OAuthCallbackFunctionRole", "RefreshFunctionRole", "RegistryFunctionRole"}
	if isCanary {
		wantRoles = append(wantRoles, "CodeDeployServiceRole")
		slices.Sort(wantRoles)
	}
	c.same("roles", slices.Sorted(maps.Keys(roles)), wantRoles)
	for name, r := range roles {
		p := r["Properties"].(map[string]any)
		managed, service := `["arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"]`, `["lambda.amazonaws.com"]`
		if name == "CodeDeployServiceRole" {
			managed, service = `["arn:aws:iam::aws:policy/service-role/AWSCodeDeployRoleForLambda"]`, `["codedeploy.amazonaws.com"]`
		}
		if got := text(p["ManagedPolicyArns"]); got != managed {
			c.addf("rights: %s has the managed policies %s", name, got)
		}
		if got := text(dig(p, "AssumeRolePolicyDocument", "Statement")); got != `[{"Action":["sts:AssumeRole"],"Effect":"Allow","Principal":{"Service":`+service+`}}]` {
			c.addf("rights: %s may be taken by %s", name, got)
		}
		for k := range p {
			if !slices.Contains([]string{"AssumeRolePolicyDocument", "ManagedPolicyArns", "Policies", "Tags"}, k) {
				c.addf("role %s: %s", name, k)
			}
		}
		have = append(have, rights(strings.TrimSuffix(name, "Role"), p["Policies"])...)
	}
	c.rights(have)
	functions := ofType(tree, "AWS::Lambda::Function")
	if len(functions) != len(folders) {
		c.addf("%d functions", len(functions))
	}
	for name, f := range functions {
		p := f["Properties"].(map[string]any)
		c.runs(name, p)
		if got := text(p["Role"]); got != `{"Fn::GetAtt":["`+name+`Role","Arn"]}` {
			c.addf("role of %s: %s", name, got)
		}
		if f["Metadata"] == nil {
			c.addf("%s: no BuildMethod", name)
		}
		for k := range p {
			if !slices.Contains([]string{"Code", "Description", "Handler", "MemorySize", "Role", "Runtime", "Timeout", "Environment", "Tags", "ReservedConcurrentExecutions", "Architectures", "LoggingConfig"}, k) {
				c.addf("%s: %s", name, k)
			}
		}
		c.environment(name, dig(p, "Environment", "Variables"))
		c.logs(tree, name, dig(p, "LoggingConfig", "LogGroup"))
	}
	// Who may call a function: the API, each route on its own.
	for name, p := range ofType(tree, "AWS::Lambda::Permission") {
		if p := p["Properties"].(map[string]any); p["Principal"] != "apigateway.amazonaws.com" || p["Action"] != "lambda:InvokeFunction" || p["SourceArn"] == nil {
			c.addf("rights: %s: %s", name, text(p))
		}
	}
	routes := make(map[string]string)
	uri := regexp.MustCompile(`\$\{(\w+)\.A(?:rn|lias)\}|\$\{(\w+)Alias`)
	paths, _ := dig(tree, "Resources", "HttpApi", "Properties", "Body", "paths").(map[string]any)
	for path, methods := range paths {
		for method, op := range methods.(map[string]any) {
			key := strings.ToUpper(method) + " " + path
			if method == "x-amazon-apigateway-any-method" {
				key = "ANY " + path
			}
			m := uri.FindStringSubmatch(text(dig(op, "x-amazon-apigateway-integration", "uri")))
			if m == nil || dig(op, "x-amazon-apigateway-integration", "payloadFormatVersion") != "2.0" {
				c.addf("route %s: %s", key, text(op))
				continue
			}
			routes[key] = m[1] + m[2]
		}
	}
	c.routes(routes)
	if cors := dig(tree, "Resources", "HttpApi", "Properties", "Body", "x-amazon-apigateway-cors"); cors != nil {
		c.addf("CorsConfiguration: %s", text(cors))
	}
	if got := text(dig(tree, "Resources", "HttpApi", "Properties", "DisableExecuteApiEndpoint")); got != "null" && got != `{"Fn::If":["DomainOnApi",true,false]}` {
		c.addf("DisableExecuteApiEndpoint: %s", got)
	}
	if body := text(dig(tree, "Resources", "HttpApi", "Properties")); !strings.Contains(body, `{"Fn::If":["DomainOnApi",true,false]}`) {
		c.addf("DisableExecuteApiEndpoint is not the condition's")
	}
	stage, _ := dig(tree, "Resources", "HttpApiApiGatewayDefaultStage", "Properties").(map[string]any)
	if stage == nil {
		c.addf("no default stage")
		return c.faults
	}
	c.stage(stage, routes)
	return c.faults
}

// common holds what is the same before and after the translation.
func (c *checker) common(tree map[string]any, types []string) {
	all, _ := tree["Resources"].(map[string]any)
	for name, r := range all {
		kind, _ := dig(r, "Type").(string)
		if !slices.Contains(types, kind) {
			c.addf("%s is a %s (a role, a policy and the like are not for this stack)", name, kind)
		}
		// The one star that there is ends the clients' ARN.
		rest := strings.ReplaceAll(text(dig(r, "Properties", "Policies")), "secret:${SecretPrefix}/*", "")
		if strings.Contains(rest, "*") {
			c.addf("%s: a wildcard: %s", name, rest)
		}
	}
	secrets := ofType(tree, "AWS::SecretsManager::Secret")
	c.same("secrets (a client's secret is no resource)", slices.Sorted(maps.Keys(secrets)), []string{"StateKey", "WrappingKey"})
	for name, s := range secrets {
		if dig(s, "Properties", "Name") != nil {
			c.addf("%s has a Name", name)
		}
		if got := text(dig(s, "Properties", "GenerateSecretString")); got != `{"ExcludePunctuation":true,"PasswordLength":64}` {
			c.addf("%s: PasswordLength and the like: %s", name, got)
		}
	}
	if w := secrets["WrappingKey"]; w != nil && (w["DeletionPolicy"] != "Retain" || w["UpdateReplacePolicy"] != "Retain") {
		c.addf("WrappingKey is not retained")
	}
	for name, g := range ofType(tree, "AWS::Logs::LogGroup") {
		if text(dig(g, "Properties", "RetentionInDays")) != `{"Ref":"LogRetentionDays"}` {
			c.addf("%s: no retention", name)
		}
	}
	alarms := ofType(tree, "AWS::CloudWatch::Alarm")
	c.same("alarms", slices.Sorted(maps.Keys(alarms)), []string{"ApiErrors", "ConfigErrors", "InvalidClient", "OAuthCallbackErrors", "RefreshErrors", "RegistryErrors", "Throttles"})
	for name, a := range alarms {
		if text(dig(a, "Properties", "AlarmActions")) != `{"Fn::If":["HasAlarmEmail",[{"Ref":"AlarmTopic"}],{"Ref":"AWS::NoValue"}]}` || dig(a, "Properties", "TreatMissingData") != "notBreaching" {
			c.addf("alarm %s goes nowhere, or rings without data", name)
		}
	}
	if a := alarms["InvalidClient"]; a != nil && text([]any{dig(a, "Properties", "Namespace"), dig(a, "Properties", "MetricName"), dig(a, "Properties", "Dimensions")}) !=
		`["Connect","InvalidClient",[{"Name":"stack","Value":{"Ref":"AWS::StackName"}}]]` {
		c.addf("alarm InvalidClient watches another metric than the broker writes")
	}
	d := dig(tree, "Resources", "Distribution", "Properties", "DistributionConfig")
	behaviors := text(dig(d, "CacheBehaviors"))
	cache := text(dig(tree, "Resources", "RegistryCache", "Properties", "CachePolicyConfig", "ParametersInCacheKeyAndForwardedToOrigin"))
	if dig(d, "Logging") != nil || dig(d, "DefaultCacheBehavior", "CachePolicyId") != "4135ea2d-6df8-44a3-9df3-4b5a84be39ad" ||
		dig(d, "DefaultCacheBehavior", "OriginRequestPolicyId") != "b689b0a8-53d0-40ab-baf2-68738e2966ac" ||
		!strings.Contains(behaviors, `"PathPattern":"/registry*"`) || strings.Count(behaviors, "PathPattern") != 1 ||
		cache != `{"CookiesConfig":{"CookieBehavior":"none"},"EnableAcceptEncodingBrotli":true,"EnableAcceptEncodingGzip":true,"HeadersConfig":{"HeaderBehavior":"none"},"QueryStringsConfig":{"QueryStringBehavior":"none"}}` {
		c.addf("CloudFront caches, forwards or logs something else: %s %s", behaviors, cache)
	}
	c.parameters(tree)
	if got := text(dig(tree, "Outputs", "RedirectUri", "Value")); !strings.Contains(got, `"${Base}/oauth/SERVICE/callback"`) {
		c.addf("RedirectUri: %s", got)
	}
	if got := text(dig(tree, "Outputs", "AddSecretCommand", "Value")); strings.Count(got, "--secret-string file://client.json\"") != 2 || strings.Count(got, "--name ${SecretPrefix}/SERVICE ") != 2 {
		c.addf("AddSecretCommand: %s", got)
	}
	for _, name := range []string{"BaseUrl", "RegistryUrl", "DnsTarget", "StateKeyArn", "WrappingKeyArn"} {
		if dig(tree, "Outputs", name, "Value") == nil {
			c.addf("no output %s", name)
		}
	}
}

func (c *checker) parameters(tree map[string]any) {
	parameters, _ := tree["Parameters"].(map[string]any)
	for name, p := range parameters {
		p := p.(map[string]any)
		if s, _ := p["Description"].(string); s == "" {
			c.addf("parameter %s has no description", name)
		}
		switch {
		case p["Type"] == "Number" && p["MinValue"] != nil && p["MaxValue"] != nil, p["AllowedValues"] != nil:
		case p["Type"] == "String" && p["AllowedPattern"] != nil:
			re, err := regexp.Compile(p["AllowedPattern"].(string))
			if err != nil || !strings.HasPrefix(re.String(), "^") || !strings.HasSuffix(re.String(), "$") {
				c.addf("parameter %s: the pattern %v: %v", name, p["AllowedPattern"], err)
				continue
			}
			if d, ok := p["Default"].(string); ok && !re.MatchString(d) {
				c.addf("parameter %s: its pattern refuses its default %q", name, d)
			}
			if p["ConstraintDescription"] == nil {
				c.addf("parameter %s does not say in words what its pattern wants", name)
			}
		default:
			c.addf("parameter %s has neither a pattern nor limits", name)
		}
		if p["Default"] == nil && name != "Revision" {
			c.addf("parameter %s has no default", name)
		}
	}
	if got := text(dig(parameters, "LogLevel", "AllowedValues")); got != `["DEBUG","INFO"]` {
		c.addf("LogLevel: %s", got)
	}
	if p, _ := dig(parameters, "SecretPrefix", "AllowedPattern").(string); p == "" || regexp.MustCompile(p).MatchString("a*") || regexp.MustCompile(p).MatchString("a/") {
		c.addf("SecretPrefix takes a star or a slash at its end: %s", p)
	}
}

// runs holds how a function runs, and that the deadlines nest: the provider's 10 s, the
// function's, the API's 30.
func (c *checker) runs(name string, p map[string]any) {
	if p["Runtime"] != "provided.al2023" || p["Handler"] != "bootstrap" || text(p["Architectures"]) != `["arm64"]` || text(p["MemorySize"]) != "256" {
		c.addf("%s: runtime, handler, arm64 or memory: %s", name, text(p))
	}
	if n, _ := p["Timeout"].(float64); n < 14 || n > 25 {
		c.addf("%s: Timeout %v", name, p["Timeout"])
	}
	if text(dig(p, "LoggingConfig", "LogFormat")) != `"JSON"` || text(dig(p, "LoggingConfig", "ApplicationLogLevel")) != `{"Ref":"LogLevel"}` {
		c.addf("%s: LoggingConfig %s", name, text(p["LoggingConfig"]))
	}
}

func (c *checker) rights(have []string) {
	slices.Sort(have)
	want := slices.Sorted(slices.Values(wantRights))
	c.same("rights", have, want)
}

func (c *checker) routes(routes map[string]string) { c.same("routes", routes, wantRoutes) }

func (c *checker) environment(name string, got any) {
	have := make(map[string]string)
	if m, ok := got.(map[string]any); ok {
		for k, v := range m {
			have[k] = text(v)
		}
	}
	want := make(map[string]string)
	for _, k := range reads(name) {
		want[k] = wantEnvironment[k]
	}
	c.same(name+": environment", have, want)
}

func (c *checker) logs(tree map[string]any, name string, got any) {
	group, _ := dig(got, "Ref").(string)
	if group != strings.TrimSuffix(name, "Function")+"Logs" || ofType(tree, "AWS::Logs::LogGroup")[group] == nil {
		c.addf("%s: log group %s", name, text(got))
	}
}

func (c *checker) stage(stage map[string]any, routes map[string]string) {
	if stage["StageName"] != "$default" {
		c.addf("stage %v", stage["StageName"])
	}
	if text(stage["DefaultRouteSettings"]) != `{"ThrottlingBurstLimit":{"Ref":"ThrottleBurst"},"ThrottlingRateLimit":{"Ref":"ThrottleRate"}}` {
		c.addf("throttle for all: %s", text(stage["DefaultRouteSettings"]))
	}
	settings, _ := stage["RouteSettings"].(map[string]any)
	for key, s := range settings {
		if routes[key] == "" {
			c.addf("throttle for %s, which is no route", key)
		}
		rate, ok := dig(s, "ThrottlingRateLimit").(float64)
		burst, ok2 := dig(s, "ThrottlingBurstLimit").(float64)
		if !ok || !ok2 || rate < 1 || rate > 50 || burst < rate || len(s.(map[string]any)) != 2 {
			c.addf("throttle of %s: %s", key, text(s))
		}
	}
	for key, function := range routes {
		if function == "OAuthCallbackFunction" && settings[key] == nil {
			c.addf("no throttle for %s", key)
		}
	}
	if text(dig(stage, "AccessLogSettings", "DestinationArn")) != `{"Fn::GetAtt":["AccessLogs","Arn"]}` {
		c.addf("access log: to %s", text(dig(stage, "AccessLogSettings", "DestinationArn")))
	}
	format, _ := dig(stage, "AccessLogSettings", "Format").(string)
	var fields map[string]string
	if err := json.Unmarshal([]byte(format), &fields); err != nil {
		c.addf("access log: %v: %s", err, format)
	}
	c.same("access log", fields, logFields)
}

// handlers are the functions' own, each with an environment that is complete.
var handlers = map[string]func(getenv func(string) string) (http.Handler, error){
	"RegistryFunction": func(func(string) string) (http.Handler, error) {
		r, err := prebuilt.Registry()
		return public.New(public.Config{Registry: r}), err
	},
	"ConfigFunction":        configured.Handler,
	"OAuthCallbackFunction": brokered.OAuth,
	"RefreshFunction":       brokered.Refresh,
}

var complete = map[string]string{
	"AWS_REGION": "eu-central-1", "CONNECT_PUBLIC_URL": "https://broker.example", "CONNECT_SERVICES": "github", "CONNECT_STATE_KEY": "a", "CONNECT_WRAPPING_KEY": "b",
}

// reads returns the variables of ours that a function reads.
func reads(name string) []string {
	seen := make(map[string]bool)
	_, err := handlers[name](func(k string) string {
		if strings.HasPrefix(k, "CONNECT_") {
			seen[k] = true
		}
		return complete[k]
	})
	if err != nil {
		panic(err)
	}
	return slices.Sorted(maps.Keys(seen))
}

// TestRoutesAreServed: what the API sends to a function that function serves, and what a
// function serves the API sends to it.
func TestRoutesAreServed(t *testing.T) {
	served := func(h http.Handler, method, path string) bool {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w.Code != http.StatusMethodNotAllowed && !strings.Contains(w.Body.String(), `"not_found"`)
	}
	fill := strings.NewReplacer("{service}", "nobody", "{id}", "github")
	paths := make(map[string]string) // path as asked → as routed
	for key := range wantRoutes {
		_, path, _ := strings.Cut(key, " ")
		paths[fill.Replace(path)] = path
	}
	for name, make := range handlers {
		h, err := make(func(k string) string { return complete[k] })
		if err != nil {
			t.Fatal(err)
		}
		for asked, routed := range paths {
			for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH"} {
				want := wantRoutes[method+" "+routed] == name || wantRoutes["ANY "+routed] == name && method == "GET"
				if routed == "/healthz" && method == "GET" {
					want = true // all answer it; the API asks one of them
				}
				if got := served(h, method, asked); got != want {
					t.Errorf("%s, %s %s: served %t, routed %t", name, method, asked, got, want)
				}
			}
		}
	}
}
