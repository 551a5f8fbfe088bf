// @ts-check
// The wire formats of Connect and their cryptography, as docs/protocol.md describes them: the
// counterpart of the Go package custody. Both run custody/testdata/vectors. It needs WebCrypto and
// nothing of a page: it runs in browsers and in Node.
//
// Whoever stores or relays an envelope learns its header and its length.
import { base64url, CustodyError, fromBase64url, jcs, malformed, parseJSON, stringify, text, utf8 } from './custody-json.js';
import { encodeMessage, parseEnvelope, parseLegacyCredential, parseMessage, SUITE } from './custody-messages.js';
import { hpkeOpen, hpkeSeal } from './hpke.js';

export { base64url, CustodyError, fromBase64url, jcs, JSONText, parseJSON } from './custody-json.js';
export { encodeMessage, MAX_MESSAGE, MAX_RESULT, parseEnvelope, parseFragment, parseMessage, SUITE } from './custody-messages.js';

/** @typedef {import('./custody-messages.js').Envelope} Envelope */
/** @typedef {import('./custody-messages.js').Purpose} Purpose */
/** @typedef {import('./custody-messages.js').Message} Message */
/** @typedef {Uint8Array<ArrayBuffer>} Bytes */
/** A public key of P-256 with its uncompressed point and its id. @typedef {{publicKey: CryptoKey, point: Bytes, id: string}} PublicKey */
/** A private key beside its public half; it need not be extractable. @typedef {PublicKey & {privateKey: CryptoKey}} Identity */
/** What an envelope belongs to. @typedef {{purpose: Purpose, space?: string, thread?: string, op?: string}} Header */

const { subtle } = crypto;
const P256 = { name: 'ECDH', namedCurve: 'P-256' };

// Keys

/**
 * Reads an uncompressed point of 65 bytes.
 * @param {Bytes} point
 * @returns {Promise<PublicKey>}
 */
export async function importPublicKey(point) {
  if (point.length !== 65 || point[0] !== 4) throw malformed('a public key is an uncompressed point of 65 bytes');
  let publicKey;
  try {
    publicKey = await subtle.importKey('raw', point, P256, true, []);
  } catch {
    throw malformed('this is not a point of P-256');
  }
  return { publicKey, point, id: await keyID(point) };
}

/**
 * The id of a key: base64url(SHA-256(its uncompressed point)).
 * @param {Bytes} point
 */
export async function keyID(point) {
  return base64url(await sha256(point));
}

/**
 * The six digits that a person compares on two screens before a connection is handed over.
 * @param {Bytes} point
 */
export async function checkNumber(point) {
  const sum = await sha256(utf8('connect/v1 check'), point);
  return String(new DataView(sum.buffer).getUint32(0) % 1_000_000).padStart(6, '0');
}

/**
 * Makes a key.
 * @param {boolean} [extractable]
 * @returns {Promise<Identity>}
 */
export async function newIdentity(extractable = false) {
  const pair = /** @type {CryptoKeyPair} */ (await subtle.generateKey(P256, extractable, ['deriveBits']));
  return identityOf(pair);
}

/**
 * An identity from its two CryptoKeys, as IndexedDB keeps them.
 * @param {{privateKey: CryptoKey, publicKey: CryptoKey}} pair
 * @returns {Promise<Identity>}
 */
export async function identityOf({ privateKey, publicKey }) {
  const point = new Uint8Array(await subtle.exportKey('raw', publicKey));
  return { privateKey, publicKey, point, id: await keyID(point) };
}

/**
 * Reads a private key in PKCS #8.
 * @param {Bytes} pkcs8
 * @param {boolean} [extractable]
 * @returns {Promise<Identity>}
 */
export async function importIdentity(pkcs8, extractable = false) {
  try {
    // Only an extractable key tells its public half; the one that is kept need not be.
    const loose = await subtle.importKey('pkcs8', pkcs8, P256, true, ['deriveBits']);
    const { x, y } = await subtle.exportKey('jwk', loose);
    const publicKey = await subtle.importKey('jwk', { kty: 'EC', crv: 'P-256', x, y }, P256, true, []);
    const privateKey = extractable ? loose : await subtle.importKey('pkcs8', pkcs8, P256, false, ['deriveBits']);
    return await identityOf({ privateKey, publicKey });
  } catch {
    throw malformed('this is not a private key of P-256 in PKCS #8');
  }
}

/**
 * The private key itself, in PKCS #8; it must be extractable.
 * @param {Identity} me
 */
export async function exportIdentity(me) {
  return new Uint8Array(await subtle.exportKey('pkcs8', me.privateKey));
}

// Envelopes

/**
 * What binds an envelope's header to its ciphertext.
 * @param {Envelope} e
 * @returns {Bytes}
 */
export function info(e) {
  const parts = [String(e.v), e.suite, e.purpose, e.space ?? '', e.thread ?? '', e.op ?? '', e.from ?? '', e.to, e.day ?? ''];
  return concat(utf8('connect/v1'), ...parts.map(lp));
}

/** Four bytes of length, big-endian, then s. @param {string} s */
function lp(s) {
  const b = utf8(s);
  const n = new Uint8Array(4);
  new DataView(n.buffer).setUint32(0, b.length);
  return concat(n, b);
}

/** @type {WeakMap<CryptoKey, Map<string, Promise<{sent: CryptoKey, received: CryptoKey}>>>} */
const tagKeyCache = new WeakMap();

/**
 * The keys of the tags that go to and come from a peer.
 * @param {Identity} me
 * @param {PublicKey} peer
 */
function tagKeys(me, peer) {
  let peers = tagKeyCache.get(me.privateKey);
  if (!peers) tagKeyCache.set(me.privateKey, (peers = new Map()));
  let keys = peers.get(peer.id);
  if (!keys) peers.set(peer.id, (keys = deriveTagKeys(me, peer)));
  return keys;
}

/** @param {Identity} me @param {PublicKey} peer */
async function deriveTagKeys(me, peer) {
  const shared = await subtle.deriveBits({ name: 'ECDH', public: peer.publicKey }, me.privateKey, 256);
  const base = await subtle.importKey('raw', shared, 'HKDF', false, ['deriveKey']);
  /** @param {string} from @param {string} to */
  const derive = (from, to) =>
    subtle.deriveKey(
      { name: 'HKDF', hash: 'SHA-256', salt: new Uint8Array(), info: concat(utf8('connect/v1 auth'), lp(from), lp(to)) },
      base,
      { name: 'HMAC', hash: 'SHA-256', length: 256 }, // without it WebCrypto makes 64 bytes, the block's size
      false,
      ['sign', 'verify'],
    );
  return { sent: await derive(me.id, peer.id), received: await derive(peer.id, me.id) };
}

/**
 * Seals plaintext for a key. day, the bot's key of the day, makes an envelope that opens with both
 * keys only.
 * @param {Identity} me
 * @param {PublicKey} to
 * @param {Header} header
 * @param {Bytes} plaintext
 * @param {PublicKey} [day]
 * @returns {Promise<Envelope>}
 */
export async function seal(me, to, header, plaintext, day) {
  const { purpose, space, thread, op } = header;
  /** @type {Envelope} */
  const e = {
    v: 1, suite: SUITE, purpose, space, thread, op, from: me.id, to: to.id, day: day?.id,
    ct: new Uint8Array(2 * 81), tag: new Uint8Array(32), // stand-ins, so that the header is checked before anything is sealed
  };
  parseEnvelope(marshalEnvelope(e));
  const bound = info(e);
  e.ct = await hpkeSeal(to.publicKey, bound, plaintext);
  if (day) e.ct = await hpkeSeal(day.publicKey, concat(bound, utf8('outer')), e.ct);
  e.tag = new Uint8Array(await subtle.sign('HMAC', (await tagKeys(me, to)).sent, concat(bound, e.ct)));
  return parseEnvelope(marshalEnvelope(e));
}

/**
 * Opens an envelope that was sealed to me. from is the key that is known for its from: the tag is
 * held against it before anything is opened. Whoever calls this holds the header against where the
 * envelope came from.
 * @param {Identity} me
 * @param {Envelope} e
 * @param {PublicKey} [from] not for what the broker answers
 * @param {Identity} [day]
 * @returns {Promise<Bytes>}
 */
export async function open(me, e, from, day) {
  if (e.to !== me.id) throw new CustodyError('not_mine', 'sealed to another key');
  const bound = info(e);
  if (e.purpose !== 'tab' && e.purpose !== 'refresh') {
    const tag = e.tag ?? new Uint8Array();
    if (!from || from.id !== e.from || !(await subtle.verify('HMAC', (await tagKeys(me, from)).received, tag, concat(bound, e.ct)))) {
      throw new CustodyError('forged', 'not from the key that it names');
    }
  }
  let ct = e.ct;
  if (e.day) {
    if (day?.id !== e.day) throw new CustodyError('day', 'sealed to a key of another day');
    ct = await tryOpen(day, concat(bound, utf8('outer')), ct);
  }
  return tryOpen(me, bound, ct);
}

/** @param {Identity} me @param {Bytes} bound @param {Bytes} ct */
async function tryOpen(me, bound, ct) {
  try {
    return await hpkeOpen(me, bound, ct);
  } catch {
    throw new CustodyError('open', 'it does not open');
  }
}

/**
 * Writes an envelope as it is sent.
 * @param {Envelope} e
 */
export function marshalEnvelope({ v, suite, purpose, space, thread, op, from, to, day, ct, tag }) {
  return stringify({
    v, suite, purpose, space: space || undefined, thread: thread || undefined, op: op || undefined, from: from || undefined, to,
    day: day || undefined, ct, tag: tag?.length ? tag : undefined,
  });
}

/**
 * Seals a message of a purpose.
 * @param {Identity} me
 * @param {PublicKey} to
 * @param {Header} header
 * @param {Message} message
 * @param {PublicKey} [day]
 */
export async function sealMessage(me, to, header, message, day) {
  return seal(me, to, header, utf8(encodeMessage(header.purpose, message, header, !!day)), day);
}

/**
 * Opens an envelope that must be of one purpose, and reads the message in it.
 * @param {Identity} me
 * @param {Envelope} e
 * @param {Purpose} purpose
 * @param {PublicKey} [from]
 * @param {Identity} [day]
 */
export async function openMessage(me, e, purpose, from, day) {
  expectPurpose(e, purpose);
  return parseMessage(purpose, text(await open(me, e, from, day)), e, !!e.day);
}

/** @param {Envelope} e @param {Purpose} purpose */
function expectPurpose(e, purpose) {
  if (e.purpose !== purpose) throw new CustodyError('purpose', `an envelope for ${e.purpose} is not one for ${purpose}`);
}

/**
 * Opens what a broker sealed to a one-time key. op is what was asked.
 * @param {Identity} me
 * @param {Envelope} e
 * @param {'tab' | 'refresh'} purpose
 * @param {string} op
 */
export async function openAnswer(me, e, purpose, op) {
  if (e.op !== op) throw new CustodyError('purpose', 'it answers another request');
  return openMessage(me, e, purpose);
}

/**
 * Seals an identity's own private key, to itself or to the one-time key of the next device.
 * @param {Identity} me it must be extractable
 * @param {PublicKey} to
 * @param {string} [space]
 */
export async function sealIdentity(me, to, space) {
  return seal(me, to, { purpose: 'identity', space }, await exportIdentity(me));
}

/**
 * Opens a key that member sealed to me; what comes out is the member's own, or refused.
 * @param {Identity} me
 * @param {Envelope} e
 * @param {PublicKey} member
 * @param {boolean} [extractable]
 */
export async function openIdentity(me, e, member, extractable = false) {
  expectPurpose(e, 'identity');
  const opened = await importIdentity(await open(me, e, member), extractable);
  if (opened.id !== member.id) throw malformed('it holds another key than the one that sealed it');
  return opened;
}

/**
 * Opens a blob of before, {"token": "…"} sealed with empty info: DNSimple's, no cap, no kind. Nothing
 * says who sealed it, so a client whose {@link Memory} knows a newer one does not take it.
 * @param {Identity} me
 * @param {Bytes} sealed
 * @returns {Promise<Credential>}
 */
export async function openLegacyCredential(me, sealed) {
  const secret = parseLegacyCredential(text(await tryOpen(me, new Uint8Array(), sealed)));
  return { v: 1, id: 'legacy', service: 'dnsimple', secret };
}

// Digests

/** The keys of an operation that change nothing of what runs. */
const LATER = ['title', 'about', 'destructive', 'idempotent', 'labels', 'deprecated', 'status'];

/** @typedef {Record<string, any>} Obj */

/**
 * The digest of an operation's text.
 * @param {Obj} manifest the file, as {@link parseJSON} or JSON.parse gives it
 * @param {string} op
 */
export async function opDigest(manifest, op) {
  return digest('op', jcs(opText(manifest, op)));
}

/**
 * What opDigest is made of.
 * @param {Obj} m
 * @param {string} op
 */
export function opText(m, op) {
  const spec = own(m.ops, op);
  if (!spec) throw new CustodyError('no_op', `${m.id} has no ${op}`);
  return {
    manifest: m.manifest, id: m.id, name: m.name, host: m.host, headers: m.headers, authorization: m.auth?.authorization,
    error: m.error, limits: m.limits, op, spec: stripOp(spec), preview: spec.preview && stripOp(own(m.ops, spec.preview.op)),
  };
}

/** @param {Obj | undefined} o @param {string} name @returns {any} */
const own = (o, name) => (o && Object.hasOwn(o, name) ? o[name] : undefined);

/** @param {any} v @returns {v is Obj} */
const isObj = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);

/** @param {Obj} o @param {string[]} names @returns {Obj} */
function without(o, ...names) {
  const out = Object.create(null);
  for (const n of Object.keys(o)) if (!names.includes(n)) out[n] = o[n];
  return out;
}

/** @param {Obj} op */
function stripOp(op) {
  const out = without(op, ...LATER);
  if (isObj(op.args)) out.args = stripArgs(op.args);
  if (isObj(op.pick) && Array.isArray(op.pick.fields)) {
    out.pick = without(op.pick);
    out.pick.fields = op.pick.fields.map((f) => (isObj(f) ? without(f, 'about') : f));
  }
  return out;
}

/** @param {Obj} args */
function stripArgs(args) {
  const out = Object.create(null);
  for (const [name, a] of Object.entries(args)) out[name] = isObj(a) ? stripArg(a) : a;
  return out;
}

/** @param {Obj} spec @returns {Obj} */
function stripArg(spec) {
  const out = without(spec, 'about');
  if (isObj(spec.of)) {
    out.of = stripArg(spec.of); // what a list holds is an arg too
    if (isObj(spec.of.object)) out.of.object = stripArgs(spec.of.object);
  }
  return out;
}

/**
 * The digest of a call's args in their one form: every scalar as text, null where a value is cleared.
 * @param {Obj} args
 */
export async function argsDigest(args) {
  /** @param {unknown} v */
  const check = (v) => {
    if (typeof v === 'number' || typeof v === 'bigint' || typeof v === 'boolean') throw malformed('an arg is not in its one form');
    if (typeof v === 'object' && v !== null) Object.values(v).forEach(check);
  };
  check(args);
  return digest('args', jcs(args));
}

/**
 * The digest of the sentence that a person reads.
 * @param {string} sentence
 */
export async function sayDigest(sentence) {
  return digest('say', sentence);
}

/**
 * The digest of what a preview picked.
 * @param {string} picked JSON, with each number's own digits
 */
export async function previewDigest(picked) {
  return digest('preview', jcs(parseJSON(picked, 'text')));
}

/** @param {string} label @param {string} data */
async function digest(label, data) {
  return base64url(await sha256(utf8(`connect/v1 ${label}`), utf8(data)));
}

/** The op of the envelope that answers a refresh. @param {Bytes} body */
export async function refreshOp(body) {
  return base64url(await sha256(body));
}

// Hand-backs

/** @typedef {import('./custody-messages.js').Credential} Credential */
/** @typedef {import('./custody-messages.js').Handback} Handback */
/** @typedef {import('./custody-messages.js').Grant} Grant */

/** How far ahead of the stored pair a hand-back may be. */
const MAX_SKIP = 65536;

/**
 * What the link of a hand-back is made of: its other members as canonical JSON; what is empty is absent.
 * @param {Omit<Handback, 'link'>} h
 */
function linked({ v, credential, pair, secret, refresh, expires_at, obtained_at = 0, keep }) {
  return utf8(jcs({
    v, credential, pair, secret, refresh: refresh || undefined, expires_at: expires_at || undefined, obtained_at,
    keep: keep && Object.keys(keep).length ? keep : undefined,
  }));
}

/**
 * The link of a hand-back: HMAC-SHA256(old refresh, JCS(the rest)).
 * @param {Omit<Handback, 'link'>} h
 * @param {string} oldRefresh
 */
export async function handbackLink(h, oldRefresh) {
  return base64url(await hmac(oldRefresh, linked(h)));
}

/**
 * Shows that the newest sealed hand-back belongs to the line of the token that was presented.
 * @param {string} presented
 * @param {Envelope} handback
 */
export async function rotatedProof(presented, handback) {
  return base64url(await hmac(presented, concat(utf8('connect/v1 rotated'), handback.ct)));
}

/**
 * The credential with its pair replaced, one generation further.
 * @param {Credential} c
 * @param {Handback} h
 * @returns {Promise<Credential>}
 */
export async function takeHandback(c, h) {
  takes(c, h);
  if (h.pair !== (c.pair ?? 0) + 1) throw new CustodyError('gap', 'a hand-back before this one is missing');
  if (!(await hmacVerify(c.refresh ?? '', h.link, linked(h)))) throw notLinked();
  return replaced(c, h);
}

/**
 * The credential with the newest pair of its line, which may skip some.
 * @param {Credential} c
 * @param {Handback} h
 * @param {Envelope} e the envelope of h
 * @param {string} proof
 * @returns {Promise<Credential>}
 */
export async function takeRotated(c, h, e, proof) {
  takes(c, h);
  if (!(await hmacVerify(c.refresh ?? '', proof, concat(utf8('connect/v1 rotated'), e.ct)))) throw notLinked();
  return replaced(c, h);
}

const notLinked = () => new CustodyError('link', 'the hand-back was not made with the pair that is stored');

/** @param {Credential} c @param {Handback} h */
function takes(c, h) {
  const pair = c.pair ?? 0;
  if (h.credential !== c.id) throw notLinked();
  if (h.pair <= pair) throw new CustodyError('older', 'older than the stored pair');
  if (h.pair - pair > MAX_SKIP) throw malformed('the hand-back skips too many pairs');
  if (!c.refresh) throw notLinked();
}

/** @param {Credential} c @param {Handback} h @returns {Credential} */
function replaced(c, h) {
  return {
    ...c, generation: (c.generation ?? 0) + 1, pair: h.pair, secret: h.secret, expires_at: h.expires_at, obtained_at: h.obtained_at,
    refresh: h.refresh || c.refresh, keep: h.keep && Object.keys(h.keep).length ? h.keep : c.keep,
  };
}

// Caps, lending, grants

/**
 * Whether a connection may be used so. One from before caps reads.
 * @param {Pick<Credential, 'cap'>} c
 * @param {string} access
 */
export function capAllows(c, access) {
  return access === 'write' ? c.cap === 'write' : access === 'read';
}

/** Seconds between two clocks that are accepted. */
export const SKEW = 30;
/** Seconds by which an access token outlives a grant for its refresh token to stay at home. */
export const REFRESH_SKEW = 60;

/** Seconds: what is minted, and what a sidecar allows. @type {Record<string, [number, number]>} */
const LIFETIME = { once: [120, 300], research: [600, 900], standing: [604800, 604800], asks: [28800, 28800] };

/**
 * The credential, one generation further, with its refresh token lent to a group of sidecars until
 * the end of a grant. It is stored by compare-and-set before the grant is posted.
 * @param {Credential} c
 * @param {string} group
 * @param {number} until
 * @param {number} now
 * @param {boolean} returned whether the holder of a lease that is over has answered since
 * @returns {Credential}
 */
export function lend(c, group, until, now, returned) {
  const l = c.lent;
  if (l && l.group !== group && (!returned || now < l.until + SKEW)) throw new CustodyError('lent', 'the refresh token is lent elsewhere');
  return { ...c, generation: (c.generation ?? 0) + 1, lent: { group, until: l && l.group === group ? Math.max(l.until, until) : until } };
}

/** 128 random bits: the id of an operation or a grant. */
export const newID = () => base64url(crypto.getRandomValues(new Uint8Array(16)));

/**
 * @typedef {object} GrantRequest
 * @property {'once' | 'research' | 'standing' | 'asks'} use
 * @property {string} [id] a grant's id to mint again
 * @property {{op: string, args: Obj, sentence: string}} [call] for once: what was read and confirmed, args in their one form
 * @property {string} [lang] of the sentence; en unless said
 * @property {string} [preview] for once: what the preview that was shown picked, as JSON
 * @property {string[]} [ops] for the other uses
 * @property {number} [until] seconds; as long as may be unless said
 * @property {string} [question]
 * @property {string} [charter]
 * @property {import('./custody-messages.js').Window} [window]
 * @property {string} [group] the bot's group
 * @property {boolean} [needsPair] a 401 has proved the access token stale
 */

/**
 * Makes a grant from a connection, or refuses.
 * @param {Obj} manifest
 * @param {Credential} c
 * @param {GrantRequest} req
 * @param {number} now seconds
 * @returns {Promise<Grant>}
 */
export async function mintGrant(manifest, c, req, now) {
  if (c.service !== manifest.id) throw new CustodyError('service', `the connection is to ${c.service}`);
  const lifetime = own(LIFETIME, req.use);
  if (!lifetime) throw malformed('the use is not known');
  const exp = req.until ?? now + lifetime[0];
  if (exp > now + lifetime[0] || exp <= now) throw new CustodyError('expiry', `${req.use} lives at most ${lifetime[0]} seconds`);
  const bound = req.use === 'once' ? await bindOnce(manifest, req) : await bindOps(manifest, req);
  if (!capAllows(c, bound.access)) throw new CustodyError('cap', 'this connection is read-only');
  const lends = !!c.refresh && (req.needsPair || (!!c.expires_at && c.expires_at <= exp + REFRESH_SKEW));
  if (lends && manifest.auth?.oauth?.refresh?.rotates && (c.lent?.group !== req.group || !c.lent || c.lent.until < exp)) {
    throw new CustodyError('lent', 'the refresh token is to be lent to this bot’s group first');
  }
  const before = !c.kind; // a connection of before: read-only, by the manifest's own scheme
  /** @type {Grant} */
  const g = {
    v: 1, id: req.id ?? newID(), service: c.service, access: before ? undefined : bound.access, use: req.use, iat: now, exp,
    kind: c.kind || undefined, secret: c.secret, refresh: lends ? c.refresh : undefined, broker: lends ? c.broker : undefined,
    expires_at: c.expires_at || undefined, keep: c.keep, credential: c.id, pair: c.pair ?? 0, account: before ? undefined : c.account,
    connection: c.connection, once: bound.once, ops: bound.ops, question: req.question, charter: req.charter, window: req.window,
  };
  const header = { purpose: /** @type {Purpose} */ ('grant'), op: req.use === 'once' ? newID() : '' };
  return /** @type {Grant} */ (parseMessage('grant', encodeMessage('grant', g, header, false), header, false));
}

/** @param {Obj} manifest @param {GrantRequest} req */
async function bindOnce(manifest, req) {
  if (!req.call || req.ops || req.question || req.charter || req.window) throw new CustodyError('once', 'it names one call and nothing else');
  const { op, args, sentence } = req.call;
  const spec = own(manifest.ops, op);
  if (!spec) throw new CustodyError('no_op', `${manifest.id} has no ${op}`);
  if (req.preview !== undefined && !spec.preview) throw new CustodyError('once', 'the operation has no preview');
  if (req.preview === undefined && spec.preview && grave(spec)) throw new CustodyError('once', 'its preview was not shown');
  const once = {
    op, op_sha256: await opDigest(manifest, op), args_sha256: await argsDigest(args), say_sha256: await sayDigest(sentence),
    lang: req.lang ?? 'en', preview_sha256: req.preview === undefined ? undefined : await previewDigest(req.preview),
  };
  return { access: /** @type {string} */ (spec.access), once, ops: undefined };
}

/** @param {Obj} spec */
const grave = (spec) => !!spec.effects?.some((/** @type {string} */ e) => e === 'money' || e === 'irreversible');

/** @param {Obj} manifest @param {GrantRequest} req */
async function bindOps(manifest, req) {
  if (req.call || req.preview !== undefined || req.lang) throw malformed('only once is for one call');
  if (!req.ops?.length) throw new CustodyError('no_op', 'it names no operation');
  const asks = req.use === 'asks';
  /** @type {Record<string, string>} */
  const ops = Object.create(null);
  for (const name of req.ops) {
    const spec = own(manifest.ops, name);
    if (!spec) throw new CustodyError('no_op', `${manifest.id} has no ${name}`);
    if (!asks && spec.access === 'write') throw new CustodyError('once', `${name} is a write`);
    if (!asks && spec.safe_post && !spec.graphql && spec.path !== '/graphql' && !spec.unattended) {
      throw new CustodyError('unattended', `${name} does not run without a person`);
    }
    if (asks && spec.access !== 'write') throw new CustodyError('no_op', `${name} is a read, for a standing grant`);
    if (grave(spec)) throw new CustodyError('asks', `${name} moves money or cannot be undone`);
    ops[name] = await opDigest(manifest, name);
  }
  return { access: asks ? 'write' : 'read', once: undefined, ops };
}

/**
 * Makes the grant of a revoke, which always carries the whole pair.
 * @param {Credential} c
 * @param {number} now
 * @returns {Grant}
 */
export function mintRevoke(c, now) {
  return {
    v: 1, id: newID(), service: c.service, access: 'read', use: 'once', iat: now, exp: now + 120, kind: c.kind, secret: c.secret,
    refresh: c.refresh, broker: c.broker, expires_at: c.expires_at, keep: c.keep, credential: c.id, pair: c.pair ?? 0, account: c.account,
  };
}

// What a device remembers

/**
 * What one device remembers of its member's connections, so that whoever stores the blobs cannot
 * bring back an older one. `seen` is plain data, to be kept beside the device's key.
 * @typedef {{generation: number, pair: number, cap: string, sum?: string}} Seen sum is of what is in
 *   the credential; none where an older program remembered it
 */
export class Memory {
  /** @param {Record<string, Seen>} [seen] */
  constructor(seen = {}) {
    /** @type {Map<string, Seen>} */
    this.seen = new Map(Object.entries(seen));
  }

  toJSON() {
    return Object.fromEntries(this.seen);
  }

  /**
   * Holds an opened credential against what is remembered: `older`, or `wider` where the member is
   * asked first. Where all is well it is remembered.
   * @param {Credential} c
   */
  async see(c) {
    const sum = await sumOf(c);
    const s = this.seen.get(c.id);
    if (s) {
      const [generation, pair, wide, wasWide] = [c.generation ?? 0, c.pair ?? 0, capAllows(c, 'write'), s.cap === 'write'];
      const other = generation === s.generation && (pair !== s.pair || wide !== wasWide || (!!s.sum && s.sum !== sum));
      if (generation < s.generation || pair < s.pair || other) throw new CustodyError('older', 'older than what this device has seen');
      if (wide && !wasWide) throw new CustodyError('wider', 'it allows more than what was last set on this device');
    }
    this.#remember(c, sum);
  }

  /**
   * Remembers what this device has made, or whose wider cap the member has agreed to.
   * @param {Credential} c
   */
  async confirm(c) {
    this.#remember(c, await sumOf(c));
  }

  /** @param {Credential} c @param {string} sum */
  #remember(c, sum) {
    this.seen.set(c.id, { generation: c.generation ?? 0, pair: c.pair ?? 0, cap: c.cap ?? '', sum });
  }

  /** Remembers that a connection has ended. @param {string} id */
  remove(id) {
    this.seen.set(id, { generation: 2 ** 52 + 1, pair: 0, cap: '' });
  }
}

/** Tells one content of a generation from another. @param {Credential} c */
const sumOf = (c) => digest('memory', jcs(filled(c)));

/**
 * A value without its empty members, which are as absent ones.
 * @param {any} v
 * @returns {any}
 */
function filled(v) {
  if (!isObj(v)) return v;
  const out = Object.create(null);
  for (const [name, member] of Object.entries(v)) {
    const m = filled(member);
    if (m && (typeof m !== 'object' || Object.keys(m).length)) out[name] = m;
  }
  return out;
}

// Small things

/** @param {...Uint8Array} parts @returns {Bytes} */
function concat(...parts) {
  const out = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const p of parts) {
    out.set(p, at);
    at += p.length;
  }
  return out;
}

/** @param {...Uint8Array} parts @returns {Promise<Bytes>} */
async function sha256(...parts) {
  return new Uint8Array(await subtle.digest('SHA-256', concat(...parts)));
}

const HMAC = { name: 'HMAC', hash: 'SHA-256' };

/** @param {string} key @param {Bytes} data @returns {Promise<Bytes>} */
async function hmac(key, data) {
  const k = await subtle.importKey('raw', utf8(key), HMAC, false, ['sign']);
  return new Uint8Array(await subtle.sign('HMAC', k, data));
}

/** Compares in constant time. @param {string} key @param {string} mac @param {Bytes} data */
async function hmacVerify(key, mac, data) {
  const k = await subtle.importKey('raw', utf8(key), HMAC, false, ['verify']);
  return subtle.verify('HMAC', k, fromBase64url(mac), data);
}
