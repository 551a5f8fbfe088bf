// @ts-check
// The form of every message: which fields, of which type, within which limits. What is read is
// held against it, and what is written too.
import { base64url, CustodyError, fromBase64url, JSONText, malformed, scan, stringify, utf8 } from './custody-json.js';

/** @typedef {import('./custody-json.js').Node} Node */
/** @typedef {'identity'|'credential'|'say'|'snapshot'|'op'|'grant'|'result'|'handback'|'ack'|'end'|'revoke'|'handoff'|'tab'|'refresh'} Purpose */
/** @typedef {{v: number, suite: string, purpose: Purpose, space?: string, thread?: string, op?: string, from?: string, to: string, day?: string, ct: Uint8Array<ArrayBuffer>, tag?: Uint8Array<ArrayBuffer>}} Envelope */
/** @typedef {{id?: string, label?: string}} Account */
/** @typedef {Record<string, {value?: string, label?: string}>} Connection */
/** @typedef {{days: string[], from: string, to: string, tz: string}} Window */
/** @typedef {{op: string, op_sha256: string, args_sha256: string, say_sha256: string, lang: string, preview_sha256?: string}} Once */
/**
 * @typedef {object} Credential
 * @property {number} v
 * @property {string} id
 * @property {number} [generation]
 * @property {number} [pair]
 * @property {string} service
 * @property {string} [kind] pat or oauth
 * @property {string} secret
 * @property {string} [refresh]
 * @property {string} [broker]
 * @property {number} [expires_at]
 * @property {number} [obtained_at]
 * @property {string[]} [scopes]
 * @property {boolean} [wider]
 * @property {string} [cap]
 * @property {Account} [account]
 * @property {Connection} [connection]
 * @property {Record<string, string>} [keep]
 * @property {Record<string, string>} [ops]
 * @property {{group: string, until: number}} [lent]
 * @property {number} [connected_at]
 */
/**
 * @typedef {object} Grant
 * @property {number} v
 * @property {string} id
 * @property {string} service
 * @property {string} [access]
 * @property {string} use
 * @property {number} iat
 * @property {number} exp
 * @property {string} [kind]
 * @property {string} secret
 * @property {string} [refresh]
 * @property {string} [broker]
 * @property {number} [expires_at]
 * @property {Record<string, string>} [keep]
 * @property {string} credential
 * @property {number} [pair]
 * @property {Account} [account]
 * @property {Connection} [connection]
 * @property {Once} [once]
 * @property {Record<string, string>} [ops]
 * @property {string} [question]
 * @property {string} [charter]
 * @property {Window} [window]
 */
/** @typedef {{v: number, id: string, service: string, op: string, args: JSONText, grant: Envelope}} Op */
/** @typedef {{arg?: string, until?: number, status?: number, size?: number, proof?: string, day?: Uint8Array<ArrayBuffer>}} ResultDetails */
/** @typedef {{code: string, message?: string, retry_after?: number, details?: ResultDetails}} ResultError */
/** @typedef {{v: number, id: string, ok?: boolean, result?: JSONText, error?: ResultError, next?: JSONText, handback?: Envelope}} Result */
/** @typedef {{v: number, credential: string, pair: number, secret: string, refresh?: string, expires_at?: number, obtained_at?: number, keep?: Record<string, string>, link: string}} Handback */
/** @typedef {{v: number, member: string, credential: string, pair: number, secret: string, refresh?: string, expires_at?: number, obtained_at?: number, keep?: Record<string, string>, until: number}} Handoff */
/** @typedef {{credential: string, pair?: number}} Ack */
/** @typedef {{at: number, grants?: string[], credential?: string, pause?: number}} End */
/** @typedef {{v: number, id: string, service: string, grant: Envelope}} Revoke */
/** @typedef {{v: number, id: string, at: number, text?: string, propose?: {service: string, op: string, args: JSONText}, event?: JSONText, charter?: JSONText, receipt?: JSONText}} Say */
/** @typedef {{v: number, service: string, access?: string, kind?: string, secret?: string, refresh?: string, expires_in?: number, scopes?: string[], wider?: boolean, keep?: Record<string, string>, error?: string}} TabOutcome */
/** @typedef {{secret: string, refresh: string, same?: boolean, expires_in?: number, scopes?: string[], keep?: Record<string, string>}} RefreshAnswer */
/** @typedef {Credential|Grant|Op|Result|Handback|Handoff|Ack|End|Revoke|Say|TabOutcome|RefreshAnswer|JSONText} Message */
/** The part of a header that a message is bound to. @typedef {{op?: string}} Bound */

/** The size of the largest message as it is sent, in bytes. */
export const MAX_MESSAGE = 65536;
/** The size of the largest picked result, in bytes. */
export const MAX_RESULT = 45056;
export const SUITE = 'p256-sha256-aes256gcm';

const MAX_COUNT = 2 ** 52;
const MAX_TIME = 253402300800; // the year 10000
const MAX_SAY_TEXT = 16384;
const MAX_SAY_ARGS = 32768;

const ID = /^[A-Za-z0-9_.-]{1,64}$/;
const RANDOM_ID = /^[A-Za-z0-9_-]{22}$/;
const KEY_ID = /^[A-Za-z0-9_-]{43}$/;
const SERVICE = /^[a-z][a-z0-9-]{0,19}$/;
const OP_ID = /^[a-z][a-z0-9_]{0,26}$/;
const TOKEN = /^[\x21-\x7e]{1,8192}$/;
const WRAP = /^rt1\.[A-Za-z0-9_-]{1,32}\.[A-Za-z0-9_-]+$/;
const ORIGIN = /^https?:\/\/[A-Za-z0-9.:[\]-]{1,255}$/;
const CODE = /^[a-z_]{1,32}$/;
const LANG = /^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$/;
const CLOCK = /^([01][0-9]|2[0-3]):[0-5][0-9]$/;
const ZONE = /^(UTC|[A-Z][A-Za-z0-9_+-]{0,31}(\/[A-Za-z0-9_+-]{1,32}){1,2})$/;
const CHARTER = /^([A-Za-z0-9_.-]{1,64}|mcp:[A-Za-z0-9_-]{43})$/;
const DAYS = ['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'];
const TAB_ERRORS = ['cancelled', 'denied', 'expired', 'provider', 'missing_scopes'];
/** Seconds that a sidecar lets a grant of each use live. */
const ALLOWED = new Map([['once', 300], ['research', 900], ['standing', 604800], ['asks', 28800]]);

/** For each purpose the form of the header's op. @type {Map<string, RegExp>} */
const OP_FORMS = new Map([
  ['identity', /^$/],
  ['credential', /^[A-Za-z0-9_.-]{1,64}\.(0|[1-9][0-9]{0,15})$/],
  ['say', /^$/],
  ['snapshot', /^([A-Za-z0-9_.-]{1,64})?$/],
  ['op', RANDOM_ID],
  ['grant', /^([A-Za-z0-9_-]{22})?$/],
  ['result', RANDOM_ID],
  ['handback', /^([A-Za-z0-9_-]{22})?$/],
  ['ack', /^$/],
  ['end', /^$/],
  ['revoke', RANDOM_ID],
  ['handoff', KEY_ID],
  ['tab', /^[a-z][a-z0-9-]{0,19}\.(read|write)$/],
  ['refresh', KEY_ID],
]);

// Readers: from a node of the strict scanner to a value, or malformed. As in Go, an absent field
// and one with its type's empty value are the same, and null is no value.

/** @template T @typedef {(node: Node, text: string) => T} Reader */

/** @type {Reader<string>} */
const str = (n) => {
  if (n.kind !== '"') throw malformed('a value is not a text');
  return n.text;
};
/** @type {Reader<number>} */
const int = (n) => {
  const v = n.kind === '0' && /^-?[0-9]+$/.test(n.text) ? Number(n.text) : NaN;
  if (!Number.isSafeInteger(v)) throw malformed('a value is not a whole number');
  return v + 0;
};
/** @type {Reader<boolean>} */
const bool = (n) => {
  if (n.kind !== 'true' && n.kind !== 'false') throw malformed('a value is not true or false');
  return n.kind === 'true';
};
/** @type {Reader<Uint8Array<ArrayBuffer>>} */
const bytes = (n) => fromBase64url(str(n, ''));
/** @type {Reader<string>} */
const digest = (n) => {
  const b = bytes(n, '');
  if (b.length !== 32) throw malformed('a digest has not 32 bytes');
  return base64url(b);
};
// P-256 (SEC 2): y² = x³ − 3x + b mod p.
const P = 0xffffffff00000001000000000000000000000000ffffffffffffffffffffffffn;
const B = 0x5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604bn;
/** @param {Uint8Array} b */
const big = (b) => b.reduce((n, x) => (n << 8n) | BigInt(x), 0n);
/** @type {Reader<Uint8Array<ArrayBuffer>>} */
const point = (n) => {
  const b = bytes(n, '');
  const [x, y] = [big(b.subarray(1, 33)), big(b.subarray(33))];
  need(b.length === 65 && b[0] === 4 && x < P && y < P && (y * y - x * x * x + 3n * x - B) % P === 0n, 'this is not a point of P-256');
  return b;
};
/** @type {Reader<JSONText>} */
const any = (n, text) => new JSONText(text.slice(n.start, n.end));
/** @type {Reader<JSONText>} */
const anyValue = (n, text) => {
  if (n.kind === 'null') throw malformed('null is no value');
  return any(n, text);
};
/** @type {Reader<JSONText>} */
const anyObject = (n, text) => {
  if (n.kind !== '{') throw malformed('a value is not an object');
  return any(n, text);
};
/** @template T @param {Reader<T>} item @returns {Reader<T[]>} */
const list = (item) => (n, text) => {
  if (n.kind !== '[') throw malformed('a value is not a list');
  return n.items.map((i) => item(i, text));
};
/** @template T @param {Reader<T>} item @returns {Reader<Record<string, T>>} */
const map = (item) => (n, text) => {
  if (n.kind !== '{') throw malformed('a value is not an object');
  const o = Object.create(null);
  for (const [name, v] of n.members) o[name] = item(v, text);
  return o;
};
/** @param {Record<string, Reader<any>>} fields @returns {Reader<any>} */
const object = (fields) => (n, text) => {
  if (n.kind !== '{') throw malformed('a value is not an object');
  /** @type {Record<string, any>} */
  const o = {};
  for (const [name, v] of n.members) {
    const read = Object.hasOwn(fields, name) ? fields[name] : undefined;
    if (!read) throw malformed('a field is not known');
    o[name] = read(v, text);
  }
  return o;
};

const envelope = object({ v: int, suite: str, purpose: str, space: str, thread: str, op: str, from: str, to: str, day: str, ct: bytes, tag: bytes });
const account = object({ id: str, label: str });
const connection = map(object({ value: str, label: str }));
const proposal = object({ service: str, op: str, args: anyObject });
const pair = { secret: str, refresh: str, expires_at: int, keep: map(str) };

/** The fields of each message. @type {Record<string, Reader<any>>} */
const FORMS = {
  credential: object({
    ...pair, v: int, id: str, generation: int, pair: int, service: str, kind: str, broker: str, obtained_at: int, scopes: list(str),
    wider: bool, cap: str, account, connection, ops: map(digest), lent: object({ group: str, until: int }), connected_at: int,
  }),
  grant: object({
    ...pair, v: int, id: str, service: str, access: str, use: str, iat: int, exp: int, kind: str, broker: str, credential: str, pair: int,
    account, connection, ops: map(digest), question: str, charter: str,
    once: object({ op: str, op_sha256: digest, args_sha256: digest, say_sha256: digest, lang: str, preview_sha256: digest }),
    window: object({ days: list(str), from: str, to: str, tz: str }),
  }),
  say: object({ v: int, id: str, at: int, text: str, propose: proposal, event: anyObject, charter: anyObject, receipt: anyObject }),
  snapshot: anyValue,
  op: object({ v: int, id: str, service: str, op: str, args: anyObject, grant: envelope }),
  result: object({
    v: int, id: str, ok: bool, result: any, next: anyObject, handback: envelope,
    error: object({ code: str, message: str, retry_after: int, details: object({ arg: str, until: int, status: int, size: int, proof: digest, day: point }) }),
  }),
  handback: object({ ...pair, v: int, credential: str, pair: int, obtained_at: int, link: digest }),
  handoff: object({ ...pair, v: int, member: str, credential: str, pair: int, obtained_at: int, until: int }),
  ack: object({ credential: str, pair: int }),
  end: object({ at: int, grants: list(str), credential: str, pause: int }),
  revoke: object({ v: int, id: str, service: str, grant: envelope }),
  tab: object({
    v: int, service: str, access: str, kind: str, secret: str, refresh: str, expires_in: int, scopes: list(str), wider: bool, keep: map(str), error: str,
  }),
  refresh: object({ secret: str, refresh: str, same: bool, expires_in: int, scopes: list(str), keep: map(str) }),
};

/** @type {Record<string, number>} */
const VERSIONS = { credential: 1, grant: 1, say: 1, op: 2, result: 2, handback: 1, handoff: 1, revoke: 1, tab: 1 };

/**
 * Reads strictly. version is the v that is known: any other makes a version, whatever else stands there.
 * @param {string} text
 * @param {Reader<any>} form
 * @param {number | undefined} version
 */
function read(text, form, version) {
  if (byteLength(text) > MAX_MESSAGE) throw new CustodyError('too_big', `at most ${MAX_MESSAGE} bytes are read`);
  const node = scan(text);
  const v = version !== undefined && node.kind === '{' ? node.members.get('v') : undefined;
  if (v?.kind === '0' && /^[0-9]+$/.test(v.text) && Number(v.text) !== version) {
    const n = Number(v.text);
    if (n < 1 || n > MAX_COUNT) throw malformed('v is not a version');
    throw new CustodyError('version', `v is ${n}`);
  }
  const m = form(node, text);
  need(version === undefined || m.v === version, 'v is missing');
  return m;
}

/** @param {string} s */
const byteLength = (s) => utf8(s).length;

/** @param {boolean} ok @param {string} what */
function need(ok, what) {
  if (!ok) throw malformed(what);
}

const time = (/** @type {number | undefined} */ t) => t === undefined || (t >= 0 && t < MAX_TIME);
const count = (/** @type {number | undefined} */ n) => n === undefined || (n >= 0 && n <= MAX_COUNT);
const is = (/** @type {RegExp} */ re, /** @type {string | undefined} */ s) => re.test(s ?? '');

/**
 * Reads an envelope; nothing is opened.
 * @param {string} text
 * @returns {Envelope}
 */
export function parseEnvelope(text) {
  return checkEnvelope(read(text, envelope, 1));
}

/**
 * @param {any} e
 * @param {Purpose} [purpose] what an envelope inside a message must be for
 * @returns {Envelope}
 */
function checkEnvelope(e, purpose) {
  const { space = '', thread = '', op = '', from = '', to = '', day = '', ct = new Uint8Array(), tag = new Uint8Array() } = e;
  if (purpose && e.purpose !== purpose) throw new CustodyError('purpose', `an envelope for ${e.purpose} stands where one for ${purpose} belongs`);
  if (e.v !== 1) {
    if (!(e.v >= 1 && e.v <= MAX_COUNT)) throw malformed('v is not a version');
    throw new CustodyError('version', `v is ${e.v}`);
  }
  if (e.suite !== SUITE) throw new CustodyError('version', `the suite is not ${SUITE}`);
  const form = OP_FORMS.get(e.purpose);
  if (!form) throw malformed('the purpose is not known');
  const unsigned = e.purpose === 'tab' || e.purpose === 'refresh';
  need(space === '' || ID.test(space), 'space is not an id');
  need(thread === '' || ID.test(thread), 'thread is not an id');
  need(form.test(op), 'op does not have the form that it has for this purpose');
  need(KEY_ID.test(to), 'to is not a key’s id');
  need(day === '' || (['op', 'revoke', 'grant'].includes(e.purpose) && KEY_ID.test(day)), 'day is not a key’s id, or stands where none may');
  need(!unsigned || (from === '' && space === '' && thread === ''), 'this purpose has no from, space or thread');
  need(unsigned || KEY_ID.test(from), 'from is not a key’s id');
  need(!['credential', 'snapshot', 'handoff'].includes(e.purpose) || from === to, 'this purpose goes from a key to itself');
  need(ct.length >= (day ? 162 : 81), 'ct is too short');
  need(tag.length === (unsigned ? 0 : 32), 'tag does not have its length');
  return e;
}

/**
 * Reads the fragment of an address in which a broker answers a tab, without "#".
 * @param {string} s
 * @returns {Envelope}
 */
export function parseFragment(s) {
  if (byteLength(s) > MAX_MESSAGE) throw new CustodyError('too_big', `at most ${MAX_MESSAGE} bytes are read`);
  const part = s.split('.');
  need(part.length === 5 && part[0] === 'v1', 'the fragment is not v1 and four parts');
  const [, to, service, access, ct] = /** @type {[string, string, string, string, string]} */ (/** @type {unknown} */ (part));
  return checkEnvelope({ v: 1, suite: SUITE, purpose: 'tab', to, op: `${service}.${access}`, ct: fromBase64url(ct) });
}

/**
 * Reads the message of a purpose, and holds it against the envelope around it.
 * @param {Purpose} purpose
 * @param {string} text
 * @param {Bound} header
 * @param {boolean} day
 * @returns {any} the message of that purpose
 */
export function parseMessage(purpose, text, header, day) {
  const form = Object.hasOwn(FORMS, purpose) ? FORMS[purpose] : undefined;
  if (!form) throw new CustodyError('purpose', `${purpose} holds no message`);
  const m = read(text, form, VERSIONS[purpose]);
  CHECKS[purpose]?.(m);
  bound(purpose, m, header.op ?? '', day);
  return m;
}

/**
 * Reads the token of a blob of before.
 * @param {string} text
 * @returns {string}
 */
export function parseLegacyCredential(text) {
  const { token } = read(text, object({ token: str }), undefined);
  need(is(TOKEN, token), 'token is not a token');
  return token;
}

/**
 * Writes the message of a purpose.
 * @param {Purpose} purpose
 * @param {Message} m
 * @param {Bound} header
 * @param {boolean} day
 * @returns {string}
 */
export function encodeMessage(purpose, m, header, day) {
  const text = stringify(m);
  parseMessage(purpose, text, header, day);
  return text;
}

/** @param {Purpose} purpose @param {any} m @param {string} op @param {boolean} day */
function bound(purpose, m, op, day) {
  /** @param {string} id */
  const to = (id) => need(op === id, 'the header’s op is not the id of what is in it');
  switch (purpose) {
    case 'op':
    case 'result':
    case 'revoke':
      return to(m.id);
    case 'credential':
      return to(`${m.id}.${m.generation ?? 0}`);
    case 'tab':
      return m.error && op.startsWith(`${m.service}.`) ? undefined : to(`${m.service}.${m.access ?? ''}`);
    case 'grant':
      need((m.use === 'once') === (op !== ''), 'a grant’s envelope names an op exactly when it is for once');
      need(!day || m.use === 'once' || m.use === 'research', 'a key of the day is for what lives minutes');
  }
}

/** @param {any} m */
function checkPair(m) {
  need(is(TOKEN, m.secret), 'secret is not a token');
  need(!m.refresh || (m.refresh.length <= 11264 && WRAP.test(m.refresh)), 'refresh is not a broker’s wrap');
}

/** @param {any} m */
function checkBroker(m) {
  need(!m.refresh === !m.broker && (!m.broker || ORIGIN.test(m.broker)), 'broker is the origin of whoever wrapped refresh, and stands with it');
}

/** @param {Record<string, string>} [ops] */
function checkOps(ops = {}) {
  for (const [name, d] of Object.entries(ops)) need(OP_ID.test(name) && some(d), 'ops holds what is no operation’s digest');
}

/** Whether a digest is there. @param {string | undefined} d */
const some = (d) => d !== undefined && !/^A+$/.test(d);

/** @type {Record<string, (m: any) => void>} */
const CHECKS = {
  credential(m) {
    need(is(ID, m.id), 'id is not an id');
    need(count(m.generation) && count(m.pair), 'a counter is out of range');
    need(is(SERVICE, m.service), 'service is not an id');
    need(m.kind === 'pat' || m.kind === 'oauth', 'kind is not known');
    checkBroker(m);
    need(!m.cap || m.cap === 'read' || m.cap === 'write', 'cap is not known');
    need(time(m.expires_at) && time(m.obtained_at) && time(m.connected_at), 'a time is out of range');
    need(!m.lent || (is(ID, m.lent.group) && time(m.lent.until)), 'lent has no group, or no end');
    checkOps(m.ops);
    checkPair(m);
  },

  grant(m) {
    const { access = '', use = '', iat = 0, exp = 0, kind = '', once } = m;
    const named = Object.keys(m.ops ?? {}).length;
    const allowed = ALLOWED.get(use);
    const before = !access && !kind && !m.account; // from a connection of before
    need(is(RANDOM_ID, m.id), 'id is not 128 random bits');
    need(is(SERVICE, m.service), 'service is not an id');
    need(access === 'read' || access === 'write' || before, 'access is not known');
    need(kind === 'pat' || kind === 'oauth' || before, 'kind is not known');
    if (!allowed) throw malformed('use is not known');
    need(time(iat) && time(exp) && time(m.expires_at) && exp > iat, 'a time is out of range');
    if (exp - iat > allowed) throw new CustodyError('expiry', `${use} lives at most ${allowed} seconds`);
    checkBroker(m);
    need(is(ID, m.credential), 'credential is not an id');
    need(count(m.pair), 'pair is out of range');
    need(use === 'once' ? !named : !once && named > 0, 'once stands in a grant for once, ops in every other');
    checkOps(m.ops);
    need(once || use !== 'once' || access !== 'write', 'what is for a revoke reads');
    if (access === 'write' && use !== 'once' && use !== 'asks') throw new CustodyError('once', 'a write is granted once');
    need(access === 'write' || use !== 'asks', 'asks is for writes');
    need(use === 'research' ? is(ID, m.question) : !m.question, 'question, an id, stands in a grant for research and nowhere else');
    need(use !== 'standing' || !!m.charter, 'charter stands in a standing grant');
    need(!m.charter || ((use === 'standing' || use === 'asks') && CHARTER.test(m.charter)), 'charter is an id, or mcp: and a key’s id');
    need(!m.window || use === 'standing', 'window stands in a standing grant');
    if (once) {
      need(is(OP_ID, once.op) && some(once.op_sha256) && some(once.args_sha256) && some(once.say_sha256), 'once lacks its op or a digest');
      need(once.preview_sha256 === undefined || some(once.preview_sha256), 'the preview’s digest is none');
      need(is(LANG, once.lang), 'lang is not a language');
    }
    if (m.window) {
      const { days = [], from = '', to = '', tz = '' } = m.window;
      need(days.length > 0 && days.every((/** @type {string} */ d, /** @type {number} */ i) => DAYS.includes(d) && days.indexOf(d) === i), 'a day is not known, or stands twice');
      need(CLOCK.test(from) && CLOCK.test(to) && from !== to, 'from and to are not two times of a day');
      need(ZONE.test(tz), 'tz is not a time zone');
    }
    checkPair(m);
  },

  say(m) {
    need(is(ID, m.id), 'id is not an id');
    need(!!m.at && time(m.at), 'at is out of range');
    if (byteLength(m.text ?? '') > MAX_SAY_TEXT) throw new CustodyError('too_big', 'the text is too long');
    need(!!m.text || !!m.propose || !!m.event || !!m.charter || !!m.receipt, 'it says nothing');
    if (m.propose) {
      need(is(SERVICE, m.propose.service) && is(ID, m.propose.op), 'what it proposes has no service or op');
      need(!!m.propose.args, 'the args are not an object');
      if (byteLength(m.propose.args.text) > MAX_SAY_ARGS) throw new CustodyError('too_big', 'the args are too long');
    }
  },

  op(m) {
    need(is(RANDOM_ID, m.id), 'id is not 128 random bits');
    need(is(SERVICE, m.service) && is(ID, m.op), 'service or op is not an id');
    need(!!m.args, 'args are not an object');
    need(!!m.grant, 'there is no grant');
    checkEnvelope(m.grant, 'grant');
  },

  result(m) {
    const { ok = false, result, error, next, handback } = m;
    need(is(RANDOM_ID, m.id), 'id is not 128 random bits');
    need(ok === !error && ok === !!result, 'it has a result when ok, an error when not');
    if (result && byteLength(result.text) > MAX_RESULT) throw new CustodyError('too_big', 'the result is too long');
    need(!next || ok, 'next is not beside a result');
    if (error) {
      const d = error.details ?? {};
      need(is(CODE, error.code), 'the error has no code');
      need(count(error.retry_after) && time(d.until) && count(d.status) && count(d.size), 'a number is out of range');
      need((error.code === 'rotated') === (d.proof !== undefined) && (!d.proof || !!handback), 'a proof stands with rotated, beside the newest hand-back');
      need(!d.day || (error.code === 'day' && !!d.until), 'a key of the day stands with day, beside its end');
    }
    if (handback) checkEnvelope(handback, 'handback');
  },

  handback(m) {
    need(is(ID, m.credential), 'credential is not an id');
    need(m.pair >= 1 && count(m.pair), 'pair is out of range');
    need(time(m.expires_at) && time(m.obtained_at), 'a time is out of range');
    need(some(m.link), 'there is no link');
    checkPair(m);
  },

  handoff(m) {
    need(is(KEY_ID, m.member), 'member is not a key’s id');
    need(is(ID, m.credential), 'credential is not an id');
    need(m.pair >= 1 && count(m.pair), 'pair is out of range');
    need(time(m.expires_at) && time(m.obtained_at) && !!m.until && time(m.until), 'a time is out of range');
    checkPair(m);
  },

  ack(m) {
    need(is(ID, m.credential) && count(m.pair), 'it names no connection, or pair is out of range');
  },

  end(m) {
    const { grants = [], credential = '' } = m;
    need(grants.length > 0 !== (credential !== ''), 'it names grants or a connection');
    need(!!m.at && time(m.at) && time(m.pause), 'a time is out of range');
    need(credential === '' || ID.test(credential), 'credential is not an id');
    need(grants.every((/** @type {string} */ g) => RANDOM_ID.test(g)), 'a grant’s id is not 128 random bits');
  },

  revoke(m) {
    need(is(RANDOM_ID, m.id), 'id is not 128 random bits');
    need(is(SERVICE, m.service), 'service is not an id');
    need(!!m.grant, 'there is no grant');
    checkEnvelope(m.grant, 'grant');
  },

  tab(m) {
    need(is(SERVICE, m.service), 'service is not an id');
    if (m.error) {
      need(TAB_ERRORS.includes(m.error), 'the error is not known');
      need(!m.secret && !m.refresh, 'a pair stands beside an error');
      return;
    }
    need(m.kind === 'oauth' && (m.access === 'read' || m.access === 'write'), 'kind or access is not known');
    need(count(m.expires_in), 'expires_in is out of range');
    checkPair(m);
  },

  refresh(m) {
    need(!!m.refresh && count(m.expires_in), 'there is no refresh token, or expires_in is out of range');
    checkPair(m);
  },
};
