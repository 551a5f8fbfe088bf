// @ts-check
// What a sign-in leaves in this browser while the provider has the word: the pending record of
// whoever began, and the hand-off of the page that the member comes back to. Both live ten minutes,
// and nothing of them leaves the browser. The private key cannot be exported by any script.

/**
 * @typedef {object} Pending
 * @property {string} id id of the one-time key
 * @property {{privateKey: CryptoKey, publicKey: CryptoKey}} key
 * @property {string} service
 * @property {'read' | 'write'} access
 * @property {string} broker its origin
 * @property {string} back where on this origin the member was, for a sign-in in the same tab
 * @property {boolean} sameTab
 * @property {number} begun milliseconds since 1970 UTC
 */
/** @typedef {{id: string, fragment: string, at: number}} HandOff */
/** What is said on the channel: an outcome that came, or what became of it. @typedef {{id: string, fragment: string} | {id: string, became: string}} Word */

/** How long a sign-in may take. */
export const LIFE = 10 * 60 * 1000;

/** The channel on which the two pages of this origin speak. */
export const CHANNEL = 'connect/done';

/** @type {Promise<IDBDatabase> | undefined} */
let opened;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const r = indexedDB.open('connect-flow', 1);
    r.onupgradeneeded = () => {
      r.result.createObjectStore('pending', { keyPath: 'id' });
      r.result.createObjectStore('handoff', { keyPath: 'id' });
    };
    r.onsuccess = () => resolve(r.result);
    r.onerror = () => reject(r.error);
  });
  return opened;
}

/**
 * @template T
 * @param {'pending' | 'handoff'} store
 * @param {IDBTransactionMode} mode
 * @param {(s: IDBObjectStore) => IDBRequest<T>} ask
 * @returns {Promise<T>}
 */
async function run(store, mode, ask) {
  const tx = (await database()).transaction(store, mode);
  const r = ask(tx.objectStore(store));
  return new Promise((resolve, reject) => {
    tx.oncomplete = () => resolve(r.result);
    tx.onabort = tx.onerror = () => reject(tx.error);
  });
}

/** @param {Pending} p */
export const keep = (p) => run('pending', 'readwrite', (s) => s.put(p));

/** @param {HandOff} h */
export const handOff = (h) => run('handoff', 'readwrite', (s) => s.put(h));

/**
 * The pending record of a key, where it still lives.
 * @param {string} id
 * @returns {Promise<Pending | undefined>}
 */
export async function pending(id) {
  const p = /** @type {Pending | undefined} */ (await run('pending', 'readonly', (s) => s.get(id)));
  return p && alive(p.begun) ? p : undefined;
}

/**
 * What was handed off to a key.
 * @param {string} id
 * @returns {Promise<HandOff | undefined>}
 */
export async function handedOff(id) {
  return run('handoff', 'readonly', (s) => s.get(id));
}

/** Forgets a sign-in, its key included. @param {string} id */
export async function forget(id) {
  await run('pending', 'readwrite', (s) => s.delete(id));
  await run('handoff', 'readwrite', (s) => s.delete(id));
}

/**
 * All that is pending; what is older than it may be is forgotten.
 * @returns {Promise<Pending[]>}
 */
export async function all() {
  const list = /** @type {Pending[]} */ (await run('pending', 'readonly', (s) => s.getAll()));
  const left = /** @type {HandOff[]} */ (await run('handoff', 'readonly', (s) => s.getAll()));
  for (const p of list) if (!alive(p.begun)) await forget(p.id);
  for (const h of left) if (!alive(h.at)) await forget(h.id);
  return list.filter((p) => alive(p.begun));
}

/** @param {number} begun */
function alive(begun) {
  const age = Date.now() - begun;
  return age >= -60_000 && age <= LIFE;
}
