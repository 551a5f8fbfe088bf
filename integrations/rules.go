package integrations

// A Rule is one thing that the loader holds manifests to. Its id is stable: it is never
// given to another rule.
type Rule struct {
	ID   string
	Why  string // what is refused and why
	Mend string // what would be right
}

// Rules returns every rule, in the order of docs/rules.md.
func Rules() []Rule { return append([]Rule(nil), rules...) }

func ruleByID(id string) (Rule, bool) {
	for _, r := range rules {
		if r.ID == id {
			return r, true
		}
	}
	return Rule{}, false
}

var rules = []Rule{
	{"json.size", "A manifest is read by a person in two minutes; a file of more than 256 KB is not read at all.", "keep the operations that people ask for"},
	{"json.bom", "A byte-order mark is invisible, and some readers take it for text.", "save the file as UTF-8 without a byte-order mark"},
	{"json.utf8", "Bytes that are not UTF-8 read differently in different programs.", "save the file as UTF-8"},
	{"json.syntax", "The file is one JSON value (RFC 8259): no comments, no trailing commas.", "mend the JSON at this place"},
	{"json.object", "A manifest is one JSON object.", "begin the file with { and end it with }"},
	{"json.trailing", "What follows the object would be read by nobody, or by somebody else.", "remove what follows the closing brace"},
	{"json.depth", "Objects and lists stand at most 32 deep in each other.", "flatten the value"},
	{"json.duplicate", "Of two equal keys, one reader takes the first and another the last.", "keep one of them"},
	{"json.unknown_key", "A key that is not known might have been meant to restrict something.", "remove it, or see schema.json for the keys"},
	{"json.type", "A value has one type.", "write the type that is wanted"},
	{"enum", "Only the listed values mean something here.", "write one of the listed values"},
	{"required", "Without it the manifest cannot be judged or run.", "add the key"},
	{"number.range", "Numbers beyond 2^53 are not the same in every program.", "write a smaller number"},
	{"text.plain", "What people read is one line of plain text: no markup, no control or direction-changing characters, no space at an end.", "write it as a plain sentence"},
	{"text.long", "A longer text does not fit where it is shown.", "shorten the text"},

	{"manifest.version", "What another version of the language means is not known here.", "write \"manifest\": 1, or use a newer program"},
	{"id.form", "The id is part of file names, tool names and environment variables.", "a lower-case letter, then at most 19 letters, digits or hyphens"},
	{"version.semver", "The version tells what changed: patch for words, minor for what adds or narrows, major for what widens.", "three numbers, such as 1.0.0"},
	{"host.form", "Exactly one host can be reached: a plain public DNS name, without scheme, port, path, user, wildcard, IP address or trailing point, in lower case.", "such as api.example.com"},
	{"header.name", "Apart from Accept and Accept-Language, only the service's own headers (their names hold the service's) are sent; never one that the executor owns or that changes the method, the address or who calls.", "remove the header"},
	{"header.value", "Headers are fixed, printable ASCII: a line break would be another header, a brace a placeholder.", "write plain ASCII"},
	{"error.status", "error.say has our words for a status from 400 to 599.", "such as \"404\""},
	{"limits.empty", "limits names headers that are not the common ones.", "name remaining, reset and unit, or remove it"},
	{"money.digits", "Exceptions to ISO 4217 are currency codes with 0 to 4 digits.", "such as \"ISK\": 2"},
	{"money.currency", "An amount says where its currency stands, so that a person reads it right.", "name an arg, a picked sibling, or \"\" where nothing tells"},
	{"path.dotted", "A path into JSON is names joined by points.", "such as data.items"},

	{"auth.scheme", "A pasted token is sent in one way.", "\"bearer\", \"none\", {\"prefix\": …}, {\"header\": …}, {\"basic\": [user, password]} or {\"pasted\": \"no\", \"why\": …}"},
	{"auth.basic", "Basic has a user and a password made from {token} and the pasted_fields, the token in one of them.", "such as [\"{email}\", \"{token}\"]"},
	{"auth.none", "There is a way to connect, and help for that way only.", "describe pasting a token, or OAuth"},
	{"auth.pasted", "A token is judged by the first prefix that fits; whoever is warned or refused is told why.", "put longer prefixes first, and give every verdict but good a say"},
	{"url.https", "Addresses are https on a public name: no user, port, fragment, IP address or private name.", "such as https://example.com/oauth/token"},
	{"url.placeholder", "An address is fixed, apart from {app} in ready.mend and {client_id} in revoke.url.", "write the address out"},
	{"oauth.domain", "What is sent to these addresses opens an account, so they are on the domain of host or authorize_url.", "use the service's own address, or list the domain under auth.links with a reason"},
	{"url.query", "Parameters have their own lists, which are checked.", "move the query into authorize_params, token_params or refresh_params"},
	{"link.domain", "A member is sent to the service's own pages only.", "use a page of the service, or list the domain under auth.links with a reason"},
	{"oauth.scope", "A scope is a token of RFC 6749, section 3.3.", "write it as the provider's page does"},
	{"oauth.scopes_write", "Whoever may write may also read.", "repeat every one of scopes in scopes_write"},
	{"oauth.separator", "Scopes are joined by a space, comma, plus or semicolon.", "write one of them"},
	{"oauth.pkce", "PKCE is on unless there is a reason.", "\"required\", \"supported\" or {\"off\": \"why\"}"},
	{"oauth.param", "A fixed parameter is printable ASCII without placeholders.", "write it out"},
	{"oauth.code", "An error code is compared as it comes: printable ASCII, no space at an end.", "write it as the provider sends it"},
	{"oauth.owned_param", "A parameter that the protocol owns cannot be set or taken: it would undo state, PKCE or the redirect address.", "remove it"},
	{"oauth.names", "Only the protocol's own parameters and answer fields have other names.", "see schema.json"},
	{"oauth.keep", "What is kept beside the pair is not secret.", "keep an id instead"},
	{"oauth.refresh", "How refreshing behaves fits together: rotation, grace, the codes that mean dead.", "say rotates and dead, or none with a reason"},
	{"oauth.revoke", "Ending a connection is one described call, or none with the place where the member does it.", "style, url, takes, reach and, where the style has them, param, client_auth, body, scheme and gone; or none"},

	{"viewer", "The viewer is a read that needs nothing, since it runs before anything is known.", "name such a read"},
	{"account", "Who the account is comes from what the viewer picks.", "name fields that the viewer picks"},
	{"ready", "Whether something is shared is told by a read that needs nothing.", "name such a read and a path in what it picks"},
	{"connect", "What a connection learns comes from a read that needs nothing, and an arg takes it.", "name such a read, and fields that it picks"},

	{"ops.none", "A service without operations does nothing.", "add an operation"},
	{"op.name", "An operation's name is part of tool names.", "a lower-case letter, then at most 26 letters, digits or underscores"},
	{"op.method", "A read does not change anything, a write does.", "GET for a read (or POST with safe_post), another method for a write"},
	{"op.safe_post", "safe_post gives the reason why a POST is a read; unattended why such a one may run without a person.", "remove it, or make the operation a read that uses POST"},
	{"op.body", "A request has at most one body, and GET, HEAD and DELETE have none.", "keep one of body_json and body_form, or use the query"},
	{"op.path", "The path is fixed but for whole segments: it cannot leave its place.", "begin with one slash, and write a placeholder as a whole segment"},
	{"op.one_of", "one_of names two or more optional args.", "make each optional and name it once"},
	{"op.scopes", "An operation needs only what its connection asks for.", "add the scope to scopes or scopes_write, or to scope_implies"},
	{"op.later", "Keys that a later part uses say something that fits the operation.", "remove or complete it"},
	{"status.date", "The day of a check is written YYYY-MM-DD.", "such as 2026-12-02"},
	{"param.name", "A query or form parameter has a fixed name; _method would change the method.", "write a plain name"},

	{"template.brace", "A brace begins or ends a placeholder, or is literal with a space inside: a typing error must not turn one into the other.", "{name} for an arg, { and } with a space inside for a literal brace, never }{"},
	{"template.no_arg", "A placeholder names an arg.", "declare the arg, or mend the name"},
	{"template.list", "A list or map is a whole value.", "give it a parameter of its own"},
	{"body.key", "Keys of a body are fixed.", "write the key out, or use an arg of type map"},
	{"body.each", "{\"each\": \"{list}\", \"as\": …} builds a list from a list arg; {item} or {item.field} stands for its items.", "see the author's guide"},

	{"arg.name", "An arg's name is part of tools.", "a lower-case letter, then at most 47 letters, digits or underscores"},
	{"arg.type", "A limit belongs to a type.", "remove it, or give the arg the type that has it"},
	{"arg.enum", "An enum lists values, each once, in plain text.", "add values"},
	{"arg.limit", "Limits are numbers of the type, the smaller first.", "mend the number"},
	{"arg.pattern", "A pattern is an RE2 expression that the whole value matches.", "see golang.org/s/re2syntax"},
	{"arg.optional", "An arg is required, optional or has a default.", "keep one of optional and default"},
	{"arg.default", "A default is a value that the arg would take.", "mend the default"},
	{"arg.list", "A list holds scalars, or objects of scalars, one level deep.", "see the author's guide"},
	{"arg.style", "There are four ways to write a list in a query or form, and a service takes one.", "repeat, comma, brackets or indexed"},
	{"arg.connection", "A value that the connection has learnt is listed under connect.", "add it to connect"},
	{"arg.quiet", "quiet says why a required arg of a write is not in its sentence.", "remove it"},
	{"arg.unused", "An arg that reaches nothing promises something untrue.", "use it or remove it"},
	{"arg.maybe_unsent", "A required arg is always sent.", "use it outside the list, or make it optional"},

	{"pick.missing", "What may flow back is listed; nothing else does.", "add pick with fields, or {\"nothing\": \"why\"}"},
	{"pick.empty", "A pick has 1 to 100 fields.", "list the fields that a person asked for"},
	{"pick.wildcard", "Every field is spelt out, so that a reviewer sees it.", "list the fields"},
	{"pick.any", "One segment may be <any>, for a map whose names are data, with a why.", "{\"path\": \"properties.<any>.name\", \"why\": …}"},
	{"pick.twice", "A field flows back once.", "remove one of them"},
	{"pick.prefix", "A field ends at a scalar, so none is inside another.", "keep the longer one"},
	{"pick.nothing", "An answer without a body has no field, page or failure in it.", "keep only nothing, with its reason"},
	{"next", "A next page is asked for in one of four ways, each with what it needs.", "link; cursor with path; last with field and more; page with pages or size"},
	{"fail", "A failure at status 200 is told by when or unless.", "{\"when\": \"errors\", \"message\": \"errors.message\"}"},

	{"confirm.missing", "Nothing is written without a sentence that a person confirms.", "add confirm, with every required arg in it"},
	{"confirm.read", "A read changes nothing, so it asks nothing.", "remove it, or make the operation a write"},
	{"confirm.arg", "What is read is what runs: every required arg is in the sentence.", "write the placeholder into it"},
	{"confirm.long", "A sentence of more than 200 characters before its values is not read.", "shorten it"},
	{"confirm.text", "The sentence is one line of plain text without markup.", "write it as a plain question"},
	{"confirm.if", "A further sentence belongs to an arg that may be left out.", "name an optional arg"},
	{"effects", "Each effect is said once.", "remove one of them"},
	{"target.missing", "What cannot be undone is confirmed by typing what it hits.", "add target, the name of an arg"},
	{"target", "The target is an arg that is always there.", "name a required arg that is a scalar"},
	{"preview", "A preview is a read of the same manifest that this operation's args are enough for.", "name such a read, cover its required args, and say only what it picks"},
	{"idempotency", "The key goes to one free place of a write.", "{\"header\": \"Idempotency-Key\"} or {\"body\": \"variables.input.id\"}"},

	{"graphql.parse", "The document is one operation of GraphQL.", "mend the document"},
	{"graphql.kind", "A read is a query, a write a mutation.", "change access, or the document"},
	{"graphql.fail", "GraphQL reports failures at status 200.", "{\"when\": \"errors\", \"message\": \"errors.message\"}"},
	{"graphql.fixed", "The document is fixed: a value in it could change what it does.", "use a variable"},
	{"graphql.body", "GraphQL is a POST of body_json with query and variables.", "{\"query\": …, \"variables\": {…}}"},
	{"graphql.variables", "Variables are those that the document declares.", "declare the variable, or remove it"},

	{"load.name", "A file is named for the service's id.", "rename the file, or mend the id"},
	{"load.collide", "In tool names and environment variables - becomes _; two ids must differ even then.", "choose another id"},
	{"load.empty", "A registry holds at least one service.", "add a manifest"},
}
