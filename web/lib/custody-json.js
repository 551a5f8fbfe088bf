// @ts-check
// JSON as custody reads and writes it: strict (RFC 8259 without duplicate names, lone
// surrogates, trailing data or more than 64 levels), and canonical (JCS, RFC 8785).
// JSON.parse alone keeps the last of two members of one name and mends nothing else.

/** How deep JSON may nest. */
const MAX_DEPTH = 64;

/**
 * Why something is refused. `code` is one of the outcomes of custody/testdata/vectors/README.md.
 */
export class CustodyError extends Error {
  /** @param {string} code @param {string} message */
  constructor(code, message) {
    super(message);
    this.name = 'CustodyError';
    this.code = code;
  }
}

/** @param {string} message */
export const malformed = (message) => new CustodyError('malformed', message);

/**
 * JSON that is carried and never looked into: an operation's args, what it picked.
 */
export class JSONText {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  /** The value, as {@link parseJSON} gives it. */
  value() {
    return parseJSON(this.text);
  }
}

/**
 * A value with its place in the text.
 * @typedef {{kind: '{', members: Map<string, Node>, start: number, end: number}
 *   | {kind: '[', items: Node[], start: number, end: number}
 *   | {kind: '"', text: string, start: number, end: number}
 *   | {kind: '0', text: string, start: number, end: number}
 *   | {kind: 'true' | 'false' | 'null', start: number, end: number}} Node
 */

const SPACE = /[ \t\n\r]*/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const WORD = /true|false|null/y;
const LONE = /\p{Surrogate}/u; // with the flag u, a pair is one character and no surrogate

/**
 * Reads one JSON value, strictly.
 * @param {string} text
 * @returns {Node}
 */
export function scan(text) {
  let at = 0;
  /** @param {RegExp} re */
  const take = (re) => {
    re.lastIndex = at;
    const m = re.exec(text);
    if (m) at = re.lastIndex;
    return m ? m[0] : null;
  };
  /** @param {string} what */
  const fail = (what) => malformed(`${what} at character ${at}`);
  const string = () => {
    const s = take(STRING);
    if (s === null) throw fail('this is not a text');
    const value = s.includes('\\') ? /** @type {string} */ (JSON.parse(s)) : s.slice(1, -1);
    if (LONE.test(value)) throw fail('half a surrogate pair');
    return value;
  };
  /** @param {string} c */
  const next = (c) => {
    take(SPACE);
    if (text[at] !== c) return false;
    at++;
    return true;
  };
  /** @param {number} depth @returns {Node} */
  const value = (depth) => {
    take(SPACE);
    const start = at;
    const c = text[at];
    if ((c === '{' || c === '[') && depth > MAX_DEPTH) throw fail('too many levels');
    if (c === '{') {
      at++;
      /** @type {Map<string, Node>} */
      const members = new Map();
      if (!next('}')) {
        do {
          take(SPACE);
          const name = string();
          if (members.has(name)) throw fail('a field stands twice');
          if (!next(':')) throw fail('a colon is missing');
          members.set(name, value(depth + 1));
        } while (next(','));
        if (!next('}')) throw fail('a brace is missing');
      }
      return { kind: '{', members, start, end: at };
    }
    if (c === '[') {
      at++;
      const items = [];
      if (!next(']')) {
        do items.push(value(depth + 1));
        while (next(','));
        if (!next(']')) throw fail('a bracket is missing');
      }
      return { kind: '[', items, start, end: at };
    }
    if (c === '"') {
      const s = string();
      return { kind: '"', text: s, start, end: at };
    }
    const n = take(NUMBER);
    if (n !== null) return { kind: '0', text: n, start, end: at };
    const w = take(WORD);
    if (w === null) throw fail('this is not JSON');
    return { kind: /** @type {'true' | 'false' | 'null'} */ (w), start, end: at };
  };
  const root = value(1);
  take(SPACE);
  if (at !== text.length) throw fail('something follows');
  return root;
}

/**
 * Reads JSON strictly into plain values; objects have no prototype, so that `__proto__` is a name
 * like any other.
 * @param {string} text
 * @param {'number' | 'text'} [numbers] 'text' gives each number as its own digits. Else a number is
 *   a number, and a whole one beyond 2^53 a bigint.
 * @returns {unknown}
 */
export function parseJSON(text, numbers = 'number') {
  /** @param {Node} node @returns {unknown} */
  const plain = (node) => {
    switch (node.kind) {
      case '{': {
        const o = Object.create(null);
        for (const [name, v] of node.members) o[name] = plain(v);
        return o;
      }
      case '[':
        return node.items.map(plain);
      case '"':
        return node.text;
      case '0': {
        if (numbers === 'text') return node.text;
        const n = Number(node.text);
        if (!Number.isFinite(n)) throw malformed('a number is too large');
        return Number.isInteger(n) && !Number.isSafeInteger(n) && /^-?[0-9]+$/.test(node.text) ? BigInt(node.text) : n;
      }
      case 'null':
        return null;
      default:
        return node.kind === 'true';
    }
  };
  return plain(scan(text));
}

/**
 * Writes a value: bytes as base64url, JSONText as it is, members that are undefined not at all.
 * @param {unknown} v
 * @param {boolean} sorted
 * @returns {string}
 */
function write(v, sorted) {
  if (v === null || typeof v === 'boolean') return String(v);
  if (typeof v === 'string') {
    if (LONE.test(v)) throw malformed('half a surrogate pair');
    return JSON.stringify(v);
  }
  if (typeof v === 'number') {
    if (!Number.isFinite(v)) throw malformed('a number that JSON does not have');
    return JSON.stringify(v);
  }
  if (typeof v === 'bigint' && !sorted) return String(v);
  if (v instanceof JSONText) return sorted ? write(v.value(), true) : v.text;
  if (v instanceof Uint8Array) return `"${base64url(v)}"`;
  if (Array.isArray(v)) return `[${v.map((item) => write(item, sorted)).join(',')}]`;
  if (typeof v !== 'object') throw malformed('a value that JSON does not have');
  const names = Object.keys(/** @type {object} */ (v));
  if (sorted) names.sort(); // by UTF-16 code units, as RFC 8785 has it
  const o = /** @type {Record<string, unknown>} */ (v);
  return `{${names.filter((n) => o[n] !== undefined).map((n) => `${write(n, sorted)}:${write(o[n], sorted)}`).join(',')}}`;
}

/** @param {unknown} v */
export const stringify = (v) => write(v, false);

/**
 * Canonical JSON (RFC 8785). Whole numbers beyond 2^53 have none.
 * @param {unknown} v
 */
export const jcs = (v) => write(v, true);

const encoder = new TextEncoder();

/** @param {string} s @returns {Uint8Array<ArrayBuffer>} */
export const utf8 = (s) => /** @type {Uint8Array<ArrayBuffer>} */ (encoder.encode(s));

/**
 * Bytes as strict UTF-8; a byte-order mark stays, and so is no JSON.
 * @param {Uint8Array} b
 */
export function text(b) {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(b);
  } catch {
    throw malformed('this is not UTF-8');
  }
}

const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
const VALUE = new Map([...ALPHABET].map((c, i) => [c.charCodeAt(0), i]));

/**
 * base64url without padding (RFC 4648, section 5).
 * @param {Uint8Array} b
 */
export function base64url(b) {
  let s = '';
  for (let i = 0; i < b.length; i += 0x8000) s += String.fromCharCode(...b.subarray(i, i + 0x8000));
  return btoa(s).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '');
}

/**
 * Reads base64url without padding; exactly one text stands for the same bytes.
 * @param {string} s
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function fromBase64url(s) {
  const out = new Uint8Array(Math.floor((s.length * 6) / 8));
  let bits = 0;
  let n = 0;
  let at = 0;
  for (let i = 0; i < s.length; i++) {
    const v = VALUE.get(s.charCodeAt(i));
    if (v === undefined) throw malformed('this is not base64url without padding');
    bits = ((bits << 6) | v) & 0xffff;
    n += 6;
    if (n >= 8) {
      n -= 8;
      out[at++] = bits >> n;
    }
  }
  if (n >= 6 || bits & ((1 << n) - 1)) throw malformed('this is not base64url without padding');
  return out;
}
