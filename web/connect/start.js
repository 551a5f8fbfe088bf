// @ts-check
// Begins a sign-in at a provider through the broker, and takes what comes of it. The outcome comes
// back sealed to a key that is made here for this one sign-in and never leaves the browser: what
// anybody else began, or changed on the way, does not open, and what was not asked for is not
// taken. Nothing depends on the opened window: providers may cut it off, and the outcome comes
// through the page /connect/done of this very origin.
import { base64url, checkNumber, identityOf, newIdentity, openAnswer, parseFragment } from '../lib/custody.js';
import { all, CHANNEL, forget, handedOff, keep, LIFE } from './pending.js';

/** @typedef {import('./pending.js').Pending} Pending */
/**
 * @typedef {object} Request
 * @property {string} broker the broker's origin
 * @property {string} service
 * @property {'read' | 'write'} access
 * @property {string} [back] where on this origin to come back to; this very page unless said
 */
/**
 * What a sign-in gave, or why it gave nothing: "cancelled", "denied", "provider", "missing_scopes",
 * or "expired" where nothing came in ten minutes.
 * @typedef {{service: string, access: 'read' | 'write', kind: 'oauth', secret: string, refresh?: string, expires_in?: number, scopes?: string[], wider?: boolean, keep?: Record<string, string>}} Connected
 * @typedef {{service: string, error: 'cancelled' | 'denied' | 'expired' | 'provider' | 'missing_scopes'}} Failed
 */

const FAILURES = new Set(['cancelled', 'denied', 'expired', 'provider', 'missing_scopes']);

/** One sign-in that is under way. */
export class Flow {
  /** @type {Pending} */ #pending;
  /** @type {import('../lib/custody.js').Identity} */ #me;
  /** @type {(v: Connected | Failed) => void} */ #settle = () => {};
  /** @type {BroadcastChannel} */ #channel;
  /** @type {ReturnType<typeof setTimeout>} */ #end;
  #over = false;
  #stop = new AbortController();

  /** The six digits that the broker's page must show too. @type {string} */ number;
  /** The broker's page, for a link where no window could be opened. @type {string} */ url;
  /** Whether the browser let no window be opened: offer url as a link, or followHere. */ blocked = false;
  /** What comes of it. It waits until then: only cancel ends the waiting. @type {Promise<Connected | Failed>} */ outcome;

  /**
   * @param {Pending} p
   * @param {import('../lib/custody.js').Identity} me
   * @param {string} number
   */
  constructor(p, me, number) {
    this.#pending = p;
    this.#me = me;
    this.number = number;
    const q = new URLSearchParams({ access: p.access, return_to: location.origin, key: base64url(me.point) });
    this.url = `${p.broker}/oauth/${p.service}/authorize?${q}`;
    this.outcome = new Promise((resolve) => (this.#settle = resolve));
    this.#channel = new BroadcastChannel(CHANNEL);
    this.#channel.onmessage = ({ data }) => {
      if (data?.id === p.id && typeof data.fragment === 'string') this.#take(data.fragment);
    };
    const look = () => this.look();
    for (const [target, event] of /** @type {[EventTarget, string][]} */ ([[document, 'visibilitychange'], [window, 'focus'], [window, 'pageshow']])) {
      target.addEventListener(event, look, { signal: this.#stop.signal });
    }
    this.#end = setTimeout(() => this.#finish({ service: p.service, error: 'expired' }), Math.max(0, p.begun + LIFE - Date.now()));
  }

  get service() { return this.#pending.service; }
  get access() { return this.#pending.access; }

  /** Goes on in this tab: what is pending stays, and resume finds it when the member is back. */
  async followHere() {
    this.#pending.sameTab = true;
    await keep(this.#pending);
    location.assign(this.url);
  }

  /** Looks whether the member is back; "I've signed in" calls it. @returns {Promise<boolean>} */
  async look() {
    const h = await handedOff(this.#pending.id);
    return h !== undefined && this.#take(h.fragment);
  }

  /** Takes a sign-in code that was copied where /connect/done found nobody. @param {string} code @returns {Promise<boolean>} */
  enter(code) {
    return this.#take(code.trim());
  }

  /** Ends the waiting and forgets the key: what comes later opens for nobody. */
  async cancel() {
    await this.#finish({ service: this.service, error: 'cancelled' });
  }

  /**
   * @param {string} fragment
   * @returns {Promise<boolean>} whether it was this sign-in's outcome
   */
  async #take(fragment) {
    if (this.#over) return false;
    const { service, access, id } = this.#pending;
    let outcome;
    try {
      const e = parseFragment(fragment);
      if (e.to !== id) return false;
      // The envelope's op is what this sign-in asked for, or it does not open.
      outcome = /** @type {Connected & Failed} */ (/** @type {unknown} */ (await openAnswer(this.#me, e, 'tab', `${service}.${access}`)));
    } catch {
      return false; // not ours, or changed on the way: keep waiting
    }
    if (outcome.service !== service) return false;
    if (outcome.error) {
      await this.#finish({ service, error: FAILURES.has(outcome.error) ? outcome.error : 'provider' });
      return true;
    }
    if (outcome.access !== access || outcome.kind !== 'oauth' || !outcome.secret) return false;
    await this.#finish(outcome);
    return true;
  }

  /** @param {Connected | Failed} outcome */
  async #finish(outcome) {
    if (this.#over) return;
    this.#over = true;
    clearTimeout(this.#end);
    this.#stop.abort();
    await forget(this.#pending.id).catch(() => {});
    this.#channel.postMessage({ id: this.#pending.id, became: 'error' in outcome ? outcome.error : 'connected' });
    this.#channel.close();
    this.#settle(outcome);
  }
}

/**
 * Begins a sign-in. It must be called in the click itself: a window that is opened later is
 * blocked.
 * @param {Request} request
 * @returns {Promise<Flow>}
 */
export function begin(request) {
  const w = window.open('about:blank', '_blank', 'popup,width=520,height=720');
  return prepare(request, w).catch((err) => {
    w?.close();
    throw err;
  });
}

/**
 * @param {Request} request
 * @param {Window | null} w
 */
async function prepare({ broker, service, access, back }, w) {
  if (new URL(broker).origin !== broker || !/^[a-z][a-z0-9-]{0,19}$/.test(service) || (access !== 'read' && access !== 'write')) {
    throw new TypeError('broker is an origin, service an id, access read or write');
  }
  if (w) w.opener = null; // no page that it comes to shall reach this one
  await all(); // forgets what is too old
  const me = await newIdentity(false);
  const here = new URL(back ?? location.href, location.href);
  if (here.origin !== location.origin) throw new TypeError('back is on this origin');
  /** @type {Pending} */
  const p = {
    id: me.id, key: { privateKey: me.privateKey, publicKey: me.publicKey }, service, access, broker,
    back: here.pathname + here.search, sameTab: false, begun: Date.now(),
  };
  await keep(p);
  ours(p.id);
  const flow = new Flow(p, me, await checkNumber(me.point));
  if (w && !w.closed) w.location.replace(flow.url);
  else flow.blocked = true;
  return flow;
}

/**
 * The sign-ins that this tab began: no other tab of the origin takes their outcome.
 * @param {string} [add]
 * @returns {string[]}
 */
function ours(add) {
  const name = 'connect/flows';
  /** @type {string[]} */
  let ids = [];
  try {
    ids = JSON.parse(sessionStorage.getItem(name) ?? '[]');
    if (add) sessionStorage.setItem(name, JSON.stringify([...ids.slice(-7), add]));
  } catch { /* without it a sign-in does not outlive its page */ }
  return ids;
}

/**
 * Takes up what this tab began before its page was loaded: it went to the provider itself, or was
 * loaded anew.
 * @returns {Promise<Flow[]>}
 */
export async function resume() {
  const flows = [];
  const mine = ours();
  for (const p of await all()) {
    if (!mine.includes(p.id)) continue;
    const me = await identityOf(p.key);
    const flow = new Flow(p, me, await checkNumber(me.point));
    await flow.look();
    flows.push(flow);
  }
  return flows;
}
