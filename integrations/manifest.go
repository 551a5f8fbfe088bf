package integrations

import (
	"encoding/json"

	"github.com/elevenmessenger/connect/integrations/internal/projection"
)

// Access says whether an operation only reads or also changes something.
type Access string

// The two kinds of operation.
const (
	Read  Access = "read"
	Write Access = "write"
)

// The effects of a write that a member is told about before it runs.
const (
	Visible      = "visible"      // other people see it
	Money        = "money"        // it moves or commits money: two presses, the first shows the preview
	Irreversible = "irreversible" // it cannot be undone: the member types the value of the target arg
)

// A Manifest describes one service: its authorization, the one host that may be
// reached, and the closed list of operations. It is made by [Parse] and must not be
// changed afterwards. Where two struct tags stand beside each other, `json` is the key
// in the file and the others are what [Parse] and schema.json hold the value to.
type Manifest struct {
	// Where an editor finds the JSON Schema; the loader ignores it.
	Schema string `json:"$schema"`
	// The version of the manifest language: 1.
	Language int `json:"manifest" req:"yes"`
	// The service's short name, also the file's name without ".json".
	ID string `json:"id" req:"yes" form:"id"`
	// This manifest's own version (semver): patch for words, minor for what adds or narrows, major for what widens.
	Version string `json:"version" req:"yes" form:"semver"`
	// The service's name as people write it.
	Name string `json:"name" req:"yes" form:"words" max:"40"`
	// What the service holds, in a few words.
	About string `json:"about" req:"yes" form:"words" max:"200"`
	// The ONE API host: a plain DNS name.
	Host string `json:"host" req:"yes" form:"host"`
	// Headers sent with every request: Accept, Accept-Language and the service's own.
	Headers Pairs `json:"headers"`
	// How a credential is obtained, judged and sent.
	Auth Auth `json:"auth" req:"yes"`
	// The read without args that says whose credential this is.
	Viewer string `json:"viewer" form:"op-id"`
	// Where in the viewer's picked result the account's id and label stand.
	Account *Account `json:"account"`
	// A read that tells whether anything is shared with the connection yet.
	Ready *Ready `json:"ready"`
	// What a connection learns once, by name: values for args that say "connection".
	Connect ConnectList `json:"connect"`
	// What may flow back from an error body.
	Error *ErrorRule `json:"error"`
	// The rate-limit headers, where they are not the common ones.
	Limits *LimitRule `json:"limits"`
	// How this service writes amounts of money.
	Money *MoneyRule `json:"money"`
	// The closed list of operations, by name.
	Ops OpList `json:"ops" req:"yes"`

	raw []byte
}

// Auth says how a credential for the service is obtained, judged and sent.
type Auth struct {
	// The scheme of a pasted token: "bearer", "none", {"prefix"}, {"header"}, {"basic"} or {"pasted": "no", "why"}.
	Authorization Authorization `json:"authorization" req:"yes"`
	// The page where a member makes a token.
	PATHelp string `json:"pat_help" form:"https"`
	// What to choose on that page, step by step.
	PATSteps []string `json:"pat_steps" form:"words" max:"200"`
	// Judges a pasted token by its prefix before anything is sent; the first prefix that fits counts.
	Pasted []PastedRule `json:"pasted"`
	// What is pasted beside the token, for {"basic"}: an e-mail address, say.
	PastedFields []PastedField `json:"pasted_fields"`
	// Domains beyond those of host and authorize_url that an address here may lead to, each with its reason.
	Links Pairs `json:"links"`
	// The OAuth 2.0 provider, every oddity as data.
	OAuth *OAuth `json:"oauth"`
}

// Authorization is the scheme of a pasted token. Exactly one of its forms is set. An
// OAuth token is always sent as Bearer, whatever this says.
type Authorization struct {
	Scheme string   `json:"-"`                          // "bearer", "none", "prefix", "header", "basic", "no"
	Prefix string   `json:"prefix" form:"token-word"`   // "Bot" in "Authorization: Bot <token>"
	Header string   `json:"header" form:"header"`       // the header that carries the bare token
	Basic  []string `json:"basic"`                      // user and password templates: "{email}", "{token}"
	Pasted string   `json:"pasted" enum:"no"`           // "no": a token cannot be pasted
	Why    string   `json:"why" form:"words" max:"200"` // why it cannot be pasted
}

// PastedRule judges a token that begins with Prefix.
type PastedRule struct {
	// The first characters of such a token.
	Prefix string `json:"prefix" req:"yes"`
	// What to think of it.
	Verdict string `json:"verdict" req:"yes" enum:"good,warn,refuse"`
	// What the member is told; required where the verdict is not good.
	Say string `json:"say" form:"words" max:"200"`
}

// PastedField is something pasted beside the token.
type PastedField struct {
	// The placeholder's name in "basic".
	Name string `json:"name" req:"yes" form:"arg"`
	// What the member reads beside the input.
	Label string `json:"label" req:"yes" form:"words" max:"60"`
}

// OAuth describes the provider's OAuth 2.0 endpoints (RFC 6749) and how they differ.
type OAuth struct {
	// The authorization server's issuer, when it sends one in the callback (RFC 9207).
	Issuer string `json:"issuer" form:"https"`
	// Where the member is sent to consent.
	AuthorizeURL string `json:"authorize_url" req:"yes" form:"https"`
	// Where a code becomes a pair.
	TokenURL string `json:"token_url" req:"yes" form:"https"`
	// Where a pair is rotated, if elsewhere.
	RefreshURL string `json:"refresh_url" form:"https"`
	// What a read-only connection asks for.
	Scopes []string `json:"scopes" req:"yes" form:"scope"`
	// What a read and write connection asks for; holds every one of scopes.
	ScopesWrite []string `json:"scopes_write" req:"yes" form:"scope"`
	// What the member is told before the flow starts, where the provider gives more than is asked.
	Say string `json:"say" form:"words" max:"300"`
	// How the broker authenticates at the token endpoint; never probed. basic_raw does not encode
	// id and secret first, basic_secret sends the secret as the user's name (Stripe Apps).
	ClientAuth string `json:"client_auth" req:"yes" enum:"post,basic,basic_raw,basic_secret,none"`
	// Whether a provider that refuses the client has used the code or token up all the same, so
	// that no other secret is tried with it.
	ClientOnce bool `json:"client_once"`
	// The encoding of a token request.
	TokenBody string `json:"token_body" req:"yes" enum:"form,json"`
	// Whether PKCE (RFC 7636, S256) is required, supported or {"off": "why"}.
	PKCE PKCE `json:"pkce" req:"yes"`
	// What stands between scopes in the request; a space unless said.
	ScopeSeparator string `json:"scope_separator" form:"separator"`
	// What stands between scopes in the answer; a space unless said.
	ScopeSeparatorAnswer string `json:"scope_separator_answer" form:"separator"`
	// Fixed extra parameters of the authorize URL.
	AuthorizeParams Pairs `json:"authorize_params"`
	// Parameters of the protocol that the authorize URL must not hold (monday.com).
	AuthorizeOmit []string `json:"authorize_omit" enum:"response_type,scope"`
	// Whether the authorize URL needs a random nonce (Hubstaff).
	AuthorizeNonce bool `json:"authorize_nonce"`
	// Fixed extra parameters of the code exchange.
	TokenParams Pairs `json:"token_params"`
	// Fixed extra parameters of a refresh.
	RefreshParams Pairs `json:"refresh_params"`
	// Other names for the protocol's request parameters (TikTok: client_key).
	ParamNames Pairs `json:"param_names"`
	// Other names for the fields of the token answer.
	AnswerNames Pairs `json:"answer_names"`
	// Whether the code exchange repeats the state (DNSimple).
	TokenSendsState bool `json:"token_sends_state"`
	// Whether a refresh carries the redirect_uri.
	RefreshRedirectURI bool `json:"refresh_redirect_uri"`
	// Callback parameters that a later call needs.
	CallbackKeep []string `json:"callback_keep" form:"param"`
	// Fields of the token answer that a later call needs (Stripe: stripe_user_id).
	TokenKeep []string `json:"token_keep" form:"param"`
	// Where in the token answer the token object stands (Slack: authed_user).
	TokenRoot string `json:"token_root" form:"dotpath"`
	// token_type values taken beside bearer.
	TokenType []string `json:"token_type" form:"param"`
	// Seconds that an access token lives where the answer does not say.
	ExpiresInDefault int `json:"expires_in_default"`
	// How refreshing behaves.
	Refresh *Refresh `json:"refresh"`
	// Paths at which an error code stands, first hit counts; "error" unless said.
	ErrorAt []string `json:"error_at" form:"dotpath"`
	// Answers that are the operator's to mend, looked at before dead.
	Misconfigured []Misconfigured `json:"misconfigured"`
	// The closed list of codes, at a status under 500, that mean "reconnect".
	Dead []string `json:"dead" form:"code"`
	// Scopes that a scope includes.
	ScopeImplies Lists `json:"scope_implies"`
	// Other names under which a scope comes back.
	ScopeAlias Pairs `json:"scope_alias"`
	// Whether an answer with more scopes than asked is refused.
	ExactScopes bool `json:"exact_scopes"`
	// How a connection is ended at the provider.
	Revoke *Revoke `json:"revoke"`
}

// PKCE says how the provider takes RFC 7636: "required", "supported", or off with a reason.
type PKCE struct {
	Mode string `json:"-"`
	Off  string `json:"off" form:"words" max:"200"` // why PKCE is off
}

// Refresh says how the provider's refresh tokens behave.
type Refresh struct {
	// Whether each refresh gives a new refresh token and ends the old one.
	Rotates bool `json:"rotates"`
	// Seconds in which the old token may still be used once more.
	ReuseGraceS int `json:"reuse_grace_s"`
	// Why there is no refresh token at all.
	None string `json:"none" form:"words" max:"200"`
}

// Misconfigured recognises an answer that the operator, not the member, must mend.
type Misconfigured struct {
	// The error code.
	Code string `json:"code" req:"yes" form:"code"`
	// A part of the message that must be there too.
	MessageHas string `json:"message_has"`
}

// Revoke says how a connection is ended at the provider.
type Revoke struct {
	// The shape of the call: RFC 7009, a form with the client's credentials, GitHub's
	// DELETE with Basic, Stripe's deauthorize with a kept value, or the token as Bearer alone.
	Style string `json:"style" enum:"rfc7009,form,github-token,deauthorize,bearer"`
	// Where the call goes; {client_id} is filled in.
	URL string `json:"url" form:"https"`
	// The parameter that carries the token or kept value, where it is not the style's own.
	Param string `json:"param" form:"param"`
	// How the client authenticates here, where it is not as at the token endpoint; "none" with
	// style form sends nothing of it.
	ClientAuth string `json:"client_auth" enum:"post,basic,basic_raw,none"`
	// The encoding of the call; a form unless said.
	Body string `json:"body" enum:"form,json"`
	// What stands before the client's secret in deauthorize's header; Bearer unless said.
	Scheme string `json:"scheme" form:"token-word"`
	// Error codes and statuses that say that the token was gone already.
	Gone []string `json:"gone" form:"code"`
	// Which token the call takes.
	Takes string `json:"takes" enum:"access,refresh"`
	// What else ends: this token, the account's connection, or the app's whole installation.
	Reach string `json:"reach" enum:"token,account,app"`
	// Where the member removes it, since there is no call.
	None string `json:"none" form:"words" max:"300"`
}

// Account says where the viewer's picked result holds who the person is.
type Account struct {
	// Path or paths of the stable id; the first that is not null counts.
	ID Paths `json:"id" req:"yes" form:"dotpath"`
	// Path or paths of what people call the account.
	Label Paths `json:"label" req:"yes" form:"dotpath"`
}

// Ready says which read shows that something is shared with the connection.
type Ready struct {
	// The read, without required args.
	Op string `json:"op" req:"yes" form:"op-id"`
	// For which connections it is asked; for all unless said.
	For string `json:"for" enum:"oauth,pasted"`
	// Path in the picked result that must hold something; "" is the result itself.
	NotEmpty string `json:"not_empty" form:"dotpath-or-empty"`
	// The page where the member mends it; {app} is the app's public name.
	Mend string `json:"mend" req:"yes" form:"https"`
	// What the member is told.
	Say string `json:"say" req:"yes" form:"words" max:"200"`
}

// Connect says how a connection learns the value of an arg once.
type Connect struct {
	Name string `json:"-" key:"arg"`
	// The read, without required args, that lists the choices.
	Op string `json:"op" req:"yes" form:"op-id"`
	// The picked field that is the value.
	Value string `json:"value" req:"yes" form:"dotpath"`
	// The picked field that the member reads.
	Label string `json:"label" req:"yes" form:"dotpath"`
}

// ErrorRule says which words of an error body may flow back.
type ErrorRule struct {
	// Paths of the human message; the first hit counts, its first item.
	Message Paths `json:"message" form:"dotpath"`
	// Our own words for a status, beside the provider's.
	Say Pairs `json:"say"`
}

// LimitRule names the rate-limit headers of a service.
type LimitRule struct {
	// The header that holds how many calls remain.
	Remaining string `json:"remaining" form:"header"`
	// The header that says when the count starts anew.
	Reset string `json:"reset" form:"header"`
	// How the reset is written.
	Unit string `json:"unit" enum:"s_from_now,epoch_s,epoch_ms"`
	// Whether a 403 with none remaining, or with Retry-After, means wait.
	Also403 bool `json:"also_403"`
}

// MoneyRule says where the service's amounts differ from ISO 4217.
type MoneyRule struct {
	// Currency code → digits after the point, where the service counts differently.
	Digits map[string]int `json:"digits" req:"yes"`
}

// An Op is one operation: what a bot may ask for, and what comes back.
type Op struct {
	Name string `json:"-" key:"op-id"`
	// A short name for people.
	Title string `json:"title" req:"yes" form:"words" max:"60"`
	// What it does, for people and models.
	About string `json:"about" form:"words" max:"300"`
	// read or write.
	Access Access `json:"access" req:"yes" enum:"read,write"`
	// The HTTP method.
	Method string `json:"method" req:"yes" enum:"GET,HEAD,POST,PUT,PATCH,DELETE"`
	// The path, whole segments as {arg}.
	Path string `json:"path" req:"yes"`
	// What the caller gives, by name; required unless optional or defaulted.
	Args ArgList `json:"args"`
	// Exactly one of these optional args is given.
	OneOf []string `json:"one_of" form:"arg"`
	// Query parameters, in this order.
	Query Pairs `json:"query"`
	// The JSON body: placeholders keep their type.
	BodyJSON *Template `json:"body_json"`
	// The form body, in this order.
	BodyForm Pairs `json:"body_form"`
	// The closed list of fields that may flow back.
	Pick *Pick `json:"pick" req:"yes"`
	// How the next page is asked for.
	Next *Next `json:"next"`
	// How a 2xx answer can be a failure.
	Fail FailList `json:"fail"`
	// The sentence that a person confirms; for writes only.
	Confirm string `json:"confirm" form:"sentence" max:"200"`
	// A further sentence for each optional arg that changes who sees, who pays or what is destroyed.
	ConfirmIf Pairs `json:"confirm_if"`
	// What the write does beyond itself.
	Effects []string `json:"effects" enum:"visible,money,irreversible"`
	// A read that runs before the write, so that the sentence is honest about what only the provider knows.
	Preview *Preview `json:"preview"`
	// The arg whose value the member types, for irreversible writes.
	Target string `json:"target" form:"arg"`
	// The scopes that it needs.
	Scopes []string `json:"scopes" form:"scope"`
	// Where a key goes that makes a repeat harmless.
	Idempotency *Idempotency `json:"idempotency"`
	// Why a read uses a method other than GET.
	SafePost string `json:"safe_post" form:"words" max:"200"`
	// Why a safe POST that is not GraphQL may run in research and unattended.
	Unattended string `json:"unattended" form:"words" max:"200"`
	// Whether it is GraphQL though its path is not /graphql.
	GraphQL bool `json:"graphql"`
	// (later) Whether a write can destroy; true unless said.
	Destructive *bool `json:"destructive"`
	// (later) Whether a repeat changes nothing more.
	Idempotent *bool `json:"idempotent"`
	// (later) How far the result is to be trusted and spread.
	Labels *Labels `json:"labels"`
	// (later) Since when it should not be used.
	Deprecated *Deprecated `json:"deprecated"`
	// (later) How the operation was last checked.
	Status *Status `json:"status"`

	path       []segment
	query      []pairTemplate
	form       []pairTemplate
	confirm    template
	confirmIf  []pairTemplate
	projection *projection.Projection
	captures   captureSet
	errors     errorSet
	isGraphQL  bool
}

// An Arg is one value that the caller of an operation gives.
type Arg struct {
	Name string `json:"-" key:"arg"`
	// Its type; "string" unless said.
	Type string `json:"type" enum:"string,integer,number,boolean,enum,date,datetime,id,path,list,map"`
	// What it is, for people and models.
	About string `json:"about" form:"words" max:"200"`
	// The smallest length (code points) or value.
	Min *Number `json:"min"`
	// The largest length (code points) or value.
	Max *Number `json:"max"`
	// An RE2 expression that the whole value matches.
	Pattern string `json:"pattern"`
	// The values of an enum.
	Values []string `json:"values"`
	// What a value of an enum or integer means, where it does not say so itself.
	Words Pairs `json:"words"`
	// How a date or datetime is sent; rfc3339 unless said.
	As string `json:"as" enum:"rfc3339,epoch_s,epoch_ms"`
	// What a list holds: a type, an arg, or {"object": {name: arg}}.
	Of *Of `json:"of"`
	// The most items of a list or map; 100 unless said.
	MaxItems int `json:"max_items"`
	// How a list is written in a query or form.
	Style string `json:"style" enum:"repeat,comma,brackets,indexed"`
	// Whether it may be left out.
	Optional bool `json:"optional"`
	// The value where it is left out.
	Default *Scalar `json:"default"`
	// Whether null may be given, to clear what is there.
	Clear bool `json:"clear"`
	// Why a required arg is not in the confirm sentence.
	Quiet string `json:"quiet" form:"words" max:"200"`
	// The connection value that fills it when the caller leaves it out.
	Connection string `json:"connection" form:"arg"`
	// That it is an amount in the currency's smallest unit.
	Money *MoneyOf `json:"money"`

	pattern *compiledPattern
}

// Of says what a list holds.
type Of struct {
	Arg    *Arg    `json:"-"`      // a scalar
	Object ArgList `json:"object"` // the fields of an object, by name
}

// MoneyOf says where the currency of an amount stands.
type MoneyOf struct {
	// The arg, or the picked sibling, that holds the ISO 4217 code; "" where nothing tells.
	Currency string `json:"currency" req:"yes" form:"dotpath-or-empty"`
}

// Pick is the closed list of what may flow back.
type Pick struct {
	// Dot path to descend before anything is picked.
	Root string `json:"root" form:"dotpath"`
	// Dot paths under the root.
	Fields []Field `json:"fields"`
	// Why nothing flows back: the answer has no body.
	Nothing string `json:"nothing" form:"words" max:"200"`
}

// Field is one picked path, written as a string or as an object.
type Field struct {
	// Dot path under the root; one segment may be <any>.
	Path string `json:"path" req:"yes" form:"fieldpath"`
	// What it is, for people and models.
	About string `json:"about" form:"words" max:"200"`
	// Its JSON type, for tools.
	Type string `json:"type" enum:"string,integer,number,boolean"`
	// That it is an amount in the smallest unit of the sibling's currency.
	Money *MoneyOf `json:"money"`
	// How a time is written.
	Time string `json:"time" enum:"epoch_s,epoch_ms,rfc3339"`
	// Why a segment is <any>.
	Why string `json:"why" form:"words" max:"200"`
}

// Next says how the next page of a list is asked for.
type Next struct {
	// Link header (RFC 8288), cursor in the body, last item's field, or page number.
	Style string `json:"style" req:"yes" enum:"link,cursor,last,page"`
	// The arg that takes the value.
	Arg string `json:"arg" req:"yes" form:"arg"`
	// cursor: path of the next cursor in the whole response.
	Path string `json:"path" form:"dotpath"`
	// cursor, last: path of what is true while there is more.
	More string `json:"more" form:"dotpath"`
	// last: the field of the last item, under the pick's root.
	Field string `json:"field" form:"dotpath"`
	// page: path of the number of pages in the whole response.
	Pages string `json:"pages" form:"dotpath"`
	// page: how many items a full page has, where there is no number of pages.
	Size int `json:"size"`
}

// Fail says how a 2xx answer can be a failure.
type Fail struct {
	// Path of what, present and not null, false or empty, means failure.
	When string `json:"when" form:"dotpath"`
	// Path of what, when anything but true, means failure.
	Unless string `json:"unless" form:"dotpath"`
	// Path or paths of the human message; the first hit counts, its first item.
	Message Paths `json:"message" form:"dotpath"`
	// Path of the error code.
	Code string `json:"code" form:"dotpath"`
	// Codes that mean the credential was not accepted.
	Unauthorized []string `json:"unauthorized"`
	// Codes that mean wait.
	RateLimited []string `json:"rate_limited"`
}

// Preview is a read that runs before a write.
type Preview struct {
	// The read, of the same manifest.
	Op string `json:"op" req:"yes" form:"op-id"`
	// Its args, from this op's args.
	Args Pairs `json:"args"`
	// The sentence, filled with the read's picked fields.
	Say string `json:"say" req:"yes" form:"sentence" max:"200"`

	args []pairTemplate
	say  template
}

// Idempotency says where a key goes that makes a repeated write harmless. One is set.
type Idempotency struct {
	// The header; then a write whose answer was lost is tried again.
	Header string `json:"header" form:"header"`
	// The path in the JSON body that takes a UUID; such a write is never repeated by itself.
	Body string `json:"body" form:"dotpath"`
}

// Labels says how far a result is to be trusted and spread.
type Labels struct {
	// Whether others than the account's own people can write what comes back.
	Integrity string `json:"integrity" enum:"trusted,untrusted"`
	// Whether what comes back may be shown to anybody.
	Confidentiality string `json:"confidentiality" enum:"public,private"`
}

// Deprecated says since when an operation should not be used.
type Deprecated struct {
	// The manifest version that deprecated it.
	Since string `json:"since" req:"yes" form:"semver"`
	// The operation to use instead.
	Use string `json:"use" form:"op-id"`
	// What to know.
	Note string `json:"note" form:"words" max:"200"`
}

// Status says how an operation was last checked against the provider.
type Status struct {
	// Against its schema, an example of it, or a real account.
	Checked string `json:"checked" req:"yes" enum:"schema,example,live"`
	// The day, YYYY-MM-DD.
	Date string `json:"date" form:"date"`
}

// Pair is a name and a value, in the file's order.
type Pair struct{ Name, Value string }

// Pairs is a JSON object of strings that keeps the file's order.
type Pairs []Pair

// Get returns the value of name.
func (p Pairs) Get(name string) (string, bool) {
	for _, e := range p {
		if e.Name == name {
			return e.Value, true
		}
	}
	return "", false
}

// Lists is a JSON object of lists of strings.
type Lists map[string][]string

// Paths is one path or several, the first that holds something counts.
type Paths []string

// OpList is the operations in the file's order.
type OpList []*Op

// ArgList is the args in the file's order.
type ArgList []*Arg

// Get returns the arg called name, or nil.
func (l ArgList) Get(name string) *Arg {
	for _, a := range l {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// ConnectList is what a connection learns, in the file's order.
type ConnectList []*Connect

// FailList is one rule or several; any of them makes a failure.
type FailList []Fail

// A Number keeps a number's own digits.
type Number struct{ Text string }

// A Scalar is a default value, as text in its type's one form.
type Scalar struct {
	Text string
	kind byte
}

// Op returns the operation called name, or nil.
func (m *Manifest) Op(name string) *Op {
	for _, o := range m.Ops {
		if o.Name == name {
			return o
		}
	}
	return nil
}

// Raw returns the file as it was parsed.
func (m *Manifest) Raw() json.RawMessage { return json.RawMessage(append([]byte(nil), m.raw...)) }

// Required says whether a caller must give the arg.
func (a *Arg) Required() bool { return !a.Optional && a.Default == nil && a.Connection == "" }

// Kind returns the arg's type, "string" where none is said.
func (a *Arg) Kind() string {
	if a.Type == "" {
		return "string"
	}
	return a.Type
}

// Has says whether the write has the effect.
func (o *Op) Has(effect string) bool {
	for _, e := range o.Effects {
		if e == effect {
			return true
		}
	}
	return false
}

// IsGraphQL says whether the operation is a GraphQL document.
func (o *Op) IsGraphQL() bool { return o.isGraphQL }
