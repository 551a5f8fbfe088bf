// @ts-check
// The page that the broker sends a member back to. What it gets, in the fragment of its address, is
// sealed to the page that began: this one reads no more than to whom it goes, hands it over within
// this browser, and shows what to do next. Nothing of it reaches a server.
const fragment = location.hash.slice(1);
history.replaceState(null, '', location.pathname); // not in the history, nor over a shoulder

// A static import would be loaded before the line above runs.
const { CHANNEL, handOff, pending } = await import('./pending.js');

/** How long the page that began has to answer. */
const PATIENCE = 1500;

/** @param {string} id */
const $ = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/**
 * Shows one state of the page.
 * @param {string} title
 * @param {string[]} say
 */
function show(title, ...say) {
  $('title').textContent = title;
  document.title = `${title} – Eleven`;
  $('say').replaceChildren(...say.map((text) => Object.assign(document.createElement('p'), { textContent: text })));
}

/** Closes the window; where it stays open, it says what to do. @param {string} title @param {string[]} say */
function end(title, ...say) {
  show(title, ...say);
  close();
}

/** A page that leads nowhere has a way back. @param {string} title @param {string[]} say */
function stuck(title, ...say) {
  show(title, ...say);
  $('back').hidden = false;
}

/**
 * The service's name as the member knows it: from the instance's own catalog, else from its id.
 * @param {string} id
 */
async function nameOf(id) {
  try {
    const r = await fetch('/api/integrations', { signal: AbortSignal.timeout(2000), credentials: 'omit' });
    if (r.ok) {
      const { services } = await r.json();
      const s = /** @type {{id: string, name: string}[]} */ (services).find((m) => m.id === id);
      if (s && typeof s.name === 'string' && s.name.length <= 40) return s.name;
    }
  } catch { /* the id will do */ }
  return id.charAt(0).toUpperCase() + id.slice(1);
}

/** A connection to hand over, as its address says: v1.<to>.<service>.<access>.<sealed>. */
function read() {
  const m = /^v1\.([A-Za-z0-9_-]{43})\.([a-z][a-z0-9-]{0,19})\.(read|write)\.([A-Za-z0-9_-]{22,87000})$/.exec(fragment);
  return m && { id: /** @type {string} */ (m[1]), service: /** @type {string} */ (m[2]), access: /** @type {string} */ (m[3]) };
}

/**
 * Hands over, and resolves to what became of it, or to nothing where nobody answered.
 * @param {string} id
 * @returns {Promise<string | undefined>}
 */
async function give(id) {
  const channel = new BroadcastChannel(CHANNEL);
  const answer = new Promise((resolve) => {
    channel.onmessage = ({ data }) => {
      if (data?.id === id && typeof data.became === 'string') resolve(data.became);
    };
    setTimeout(resolve, PATIENCE);
  });
  try {
    await handOff({ id, fragment, at: Date.now() });
  } finally {
    channel.postMessage({ id, fragment });
  }
  return answer;
}

/** Nobody in this browser began it. @param {string} service @param {string} access */
async function stranger(service, access) {
  const name = await nameOf(service);
  if (access !== 'read') {
    show('Nobody is waiting for this here', `This sign-in to ${name} was not begun in this browser, so nothing was connected.`,
      'Go back to your own Eleven and start again there. If somebody sent you here, close this page: whoever asked you to sign in wants your ' + name + '.');
    return;
  }
  show('Almost there', 'Go back to Eleven and tap “I’ve signed in”.', 'If Eleven asks for a code, copy it here.');
  $('warning').textContent = `Enter it only in your own Eleven. Whoever asks you for it wants your ${name}.`;
  $('code').hidden = false;
  $('copy').addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(fragment);
      $('copied').textContent = 'Copied. It works once, in the Eleven that you started from.';
    } catch {
      const field = /** @type {HTMLTextAreaElement} */ ($('text'));
      field.value = fragment;
      $('by-hand').hidden = false;
      field.select();
    }
  });
}

async function main() {
  const to = read();
  if (!to) {
    stuck('Nothing to finish here', 'This address is incomplete or was changed on the way. Go back to Eleven and start again.');
    return;
  }
  const began = await pending(to.id).catch(() => undefined);
  if (!began || began.service !== to.service || began.access !== to.access) {
    await stranger(to.service, to.access);
    return;
  }
  if (began.sameTab) {
    await handOff({ id: to.id, fragment, at: Date.now() });
    location.replace(began.back); // there resume() takes it up
    return;
  }
  const became = await give(to.id);
  switch (became) {
    case undefined: // the page that began sleeps, or is gone; what was handed over waits for it
      end('Signed in', 'Go back to Eleven and tap “I’ve signed in”.', 'You can close this window.');
      break;
    case 'connected':
      end('Signed in', 'You can close this window.');
      break;
    case 'cancelled':
      end('Cancelled', 'Nothing was connected. You can close this window.');
      break;
    default:
      end('Not connected', 'Eleven says what went wrong. You can close this window.');
  }
  $('title').focus();
}

main().catch(() => stuck('This did not work', 'Go back to Eleven and start again.'));
