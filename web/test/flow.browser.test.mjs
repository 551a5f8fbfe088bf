// The whole flow in Chromium: the page that begins, the broker's consent page, a certified
// authorization server, the callback, the hand-over, and whoever would like to be in between.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { accessible, missing, person, pictures, start } from './browser.mjs';

const options = missing && !process.env.CI ? { skip: missing } : {};
const STARTER = 'https://chat.test/test/pages/start.html';

/** @type {Awaited<ReturnType<typeof start>>} */
let all;
before(async () => {
  if (options.skip) return;
  assert.equal(missing, '');
  all = await start();
});
after(() => all?.close());

/** Opens the page that begins. */
async function starter(context) {
  const page = await context.newPage();
  await page.goto(STARTER);
  return page;
}

/** Begins a sign-in and returns the window that opens, at the consent page. */
async function begin(page, service, access = 'read') {
  await page.fill('#service', service);
  await page.selectOption('#access', access);
  const n = await page.locator('.flow').count();
  const [popup] = await Promise.all([page.waitForEvent('popup'), page.click('#begin')]);
  await popup.waitForURL('https://broker.test/oauth/**');
  const flow = page.locator('.flow').nth(n);
  await flow.waitFor();
  return { popup, flow, number: await flow.locator('.number').textContent() };
}

/** Ticks the box and presses the button. */
async function approve(popup) {
  await popup.check('input[name=agree]');
  await popup.click('button[type=submit]');
}

/** What a sign-in gave, as the page that began has it. */
async function outcome(flow) {
  return JSON.parse(await flow.locator('.outcome').textContent());
}

const spaced = (n) => `${n.slice(0, 3)} ${n.slice(3)}`;

/** Signs in at the certified server and lets it ask for consent. */
async function signIn(popup) {
  await popup.waitForURL('https://login.certified.example/interaction/**');
  await popup.fill('input[name=login]', 'ada');
  await popup.fill('input[name=password]', 'x');
  await popup.click('button[type=submit]');
  await popup.waitForURL('https://login.certified.example/interaction/**');
  await popup.waitForSelector('button[type=submit]:has-text("Continue")');
}

/** A consent page's address with a key of somebody who is not in this browser. */
async function foreign(service, access = 'read', to = 'https://chat.test') {
  const pair = await crypto.subtle.generateKey({ name: 'ECDH', namedCurve: 'P-256' }, true, ['deriveBits']);
  const key = Buffer.from(await crypto.subtle.exportKey('raw', pair.publicKey)).toString('base64url');
  return `https://broker.test/oauth/${service}/authorize?${new URLSearchParams({ access, return_to: to, key })}`;
}

/**
 * Stops the first redirect to an address that begins so, and returns it; a blank page stands there
 * instead. (A page's route does not see redirects.)
 */
async function hold(page, prefix) {
  const cdp = await page.context().newCDPSession(page);
  await cdp.send('Fetch.enable', { patterns: [{ urlPattern: 'https://*', requestStage: 'Response', resourceType: 'Document' }] });
  return new Promise((resolve) => {
    cdp.on('Fetch.requestPaused', async ({ requestId, responseHeaders = [] }) => {
      const to = responseHeaders.find((h) => h.name.toLowerCase() === 'location')?.value ?? '';
      if (!to.startsWith(prefix)) {
        await cdp.send('Fetch.continueRequest', { requestId });
        return;
      }
      await cdp.send('Fetch.fulfillRequest', {
        requestId, responseCode: 200, body: Buffer.from('<!doctype html><title>held</title>').toString('base64'),
        responseHeaders: [...responseHeaders.filter((h) => h.name.toLowerCase() === 'set-cookie'), { name: 'Content-Type', value: 'text/html' }],
      });
      await cdp.detach();
      resolve(to);
    });
  });
}

/** What is kept of sign-ins in a page's browser. */
async function stored(page) {
  return page.evaluate(async () => {
    const db = await new Promise((resolve, reject) => {
      const r = indexedDB.open('connect-flow', 1);
      r.onsuccess = () => resolve(r.result);
      r.onerror = reject;
    });
    const out = {};
    for (const name of [...db.objectStoreNames]) {
      out[name] = await new Promise((resolve) => { db.transaction(name).objectStore(name).getAllKeys().onsuccess = (e) => resolve(e.target.result.length); });
    }
    db.close();
    return out;
  });
}

test('the whole flow with a certified server', options, async () => {
  const { context, complaints } = await person(all.browser);
  const page = await starter(context);
  const { popup, flow, number } = await begin(page, 'oidc', 'write');

  // The consent page names service, access, origin and the number that stands in the starter.
  const text = await popup.locator('main').innerText();
  for (const want of ['Certified', 'Read and write', 'chat.test', spaced(number), 'tickets.write']) assert.ok(text.includes(want), `the consent page does not say ${want}: ${text}`);
  assert.equal(await popup.locator('input[name=agree]').isChecked(), false);
  assert.equal(await popup.evaluate(() => window.opener), null, 'the window can reach the page that opened it');
  await pictures(popup, 'consent');

  // Without the tick nothing goes out.
  let posts = 0;
  popup.on('request', (r) => { if (r.method() === 'POST' && r.url().startsWith('https://broker.test')) posts++; });
  await popup.click('button[type=submit]');
  assert.equal(posts, 0);

  // By keyboard: the box, which the browser points at, then the button.
  assert.equal(await popup.evaluate(() => document.activeElement?.getAttribute('name')), 'agree');
  await popup.keyboard.press('Space');
  await popup.keyboard.press('Tab');
  await popup.keyboard.press('Enter');

  await signIn(popup);
  assert.equal(await popup.evaluate(() => window.opener), null);
  let referrer;
  const done = new Promise((resolve) => popup.on('request', async (r) => {
    if (r.url().startsWith('https://chat.test/connect/done') && r.isNavigationRequest()) {
      referrer = (await r.allHeaders()).referer;
      resolve(undefined);
    }
  }));
  const closed = popup.waitForEvent('close');
  await popup.click('button[type=submit]');
  await done;
  const got = await outcome(flow);
  await closed;
  assert.equal(referrer, undefined, 'the last hop says where it comes from');
  assert.deepEqual({ service: got.service, access: got.access, kind: got.kind }, { service: 'oidc', access: 'write', kind: 'oauth' });
  assert.match(got.refresh, /^rt1\.w1\./);
  assert.ok(got.secret.length > 20 && got.expires_in === 60);
  assert.equal(all.op.seen.token, 1);
  assert.deepEqual(await stored(page), { handoff: 0, pending: 0 });
  assert.deepEqual(complaints, []);
  // The log has the flow and nothing of its secrets.
  const log = await all.log();
  assert.ok(log.includes('/oauth/{service}/callback'));
  for (const secret of [got.secret, got.refresh, 'SENTINEL']) assert.ok(!log.includes(secret));
  await context.close();
});

test('an address cleaned, and words where the window stays open', options, async () => {
  const { context } = await person(all.browser);
  const page = await starter(context);
  const { popup, flow } = await begin(page, 'acme');
  await popup.evaluate(() => {}); // at the consent page
  await context.addInitScript(() => { window.close = () => {}; });
  await approve(popup); // this provider asks nobody: one chain of redirects to the instance
  await popup.waitForURL('https://chat.test/connect/done');
  const got = await outcome(flow);
  assert.equal(got.access, 'read');
  await popup.getByText('You can close this window.').waitFor();
  assert.equal(await popup.locator('h1').textContent(), 'Signed in');
  assert.deepEqual(await popup.evaluate(() => [location.href, location.search, location.hash, document.referrer, document.title]),
    ['https://chat.test/connect/done', '', '', '', 'Signed in – Eleven']);
  const entries = await popup.evaluate(() => performance.getEntriesByType('resource').map((e) => e.name));
  assert.ok(entries.every((e) => e.startsWith('https://chat.test/')), `the page loads from elsewhere: ${entries}`);
  await pictures(popup, 'done');
  await popup.goBack().catch(() => {});
  assert.ok(!popup.url().includes('#v1'), 'the history holds the outcome');
  await context.close();
});

test("the attacker's link in the victim's browser", options, async () => {
  const attacker = await person(all.browser);
  const victim = await person(all.browser);
  // The attacker consents himself and stops before the provider.
  const his = await attacker.context.newPage();
  await his.goto(await foreign('acme', 'write', 'https://evil.test'));
  const held = hold(his, 'https://auth.acme.example/');
  await approve(his);
  const link = await held;
  const before = await all.calls();
  const hers = await victim.context.newPage();
  const answer = await hers.goto(link); // her browser is known to the provider, which asks nobody
  assert.equal(answer.status(), 403);
  assert.ok(hers.url().startsWith('https://broker.test/oauth/acme/callback'));
  await hers.getByText('not waiting in this browser').waitFor();
  assert.equal((await all.calls()).token, before.token, 'the code was exchanged');
  await pictures(hers, 'no-flow');
  await attacker.context.close();
  await victim.context.close();
});

test('an evil page that opens the window hears nothing', options, async () => {
  const { context } = await person(all.browser);
  const evil = await context.newPage();
  await evil.goto('https://evil.test/');
  const url = await foreign('acme', 'read', 'https://evil.test');
  const [popup] = await Promise.all([context.waitForEvent('page'), evil.evaluate((to) => {
    window.heard = [];
    addEventListener('message', (e) => window.heard.push(e.data));
    new BroadcastChannel('connect/done').onmessage = (e) => window.heard.push(e.data);
    window.w = open(to);
  }, await foreign('acme'))]);
  await popup.waitForURL('https://broker.test/**');
  await approve(popup);
  await popup.waitForURL('https://chat.test/connect/done');
  await popup.getByText('Enter it only in your own Eleven').waitFor();
  assert.deepEqual(await evil.evaluate(() => window.heard), []);
  assert.equal(await evil.evaluate(() => { try { return window.w.location.href; } catch { return 'closed to it'; } }).catch(() => 'closed to it'), 'closed to it');
  // And it cannot be framed.
  await evil.evaluate((to) => { const f = document.createElement('iframe'); f.src = to; document.body.append(f); }, url);
  await evil.waitForTimeout(300);
  assert.ok(!evil.frames().some((f) => f !== evil.mainFrame() && f.url().startsWith('https://broker.test')));
  await context.close();
});

test('two sign-ins at once', options, async () => {
  const { context } = await person(all.browser);
  const page = await starter(context);
  const one = await begin(page, 'acme', 'read');
  const two = await begin(page, 'github', 'write');
  assert.notEqual(one.number, two.number);
  await approve(two.popup);
  assert.deepEqual((({ service, access }) => ({ service, access }))(await outcome(two.flow)), { service: 'github', access: 'write' });
  assert.equal(await one.flow.locator('.outcome').count(), 0, 'the other one was taken too');
  await approve(one.popup);
  assert.deepEqual((({ service, access }) => ({ service, access }))(await outcome(one.flow)), { service: 'acme', access: 'read' });
  assert.deepEqual(await stored(page), { handoff: 0, pending: 0 });
  await context.close();
});

test('another tab takes nothing', options, async () => {
  const { context } = await person(all.browser);
  const page = await starter(context);
  const { popup, flow } = await begin(page, 'acme');
  const other = await starter(context); // resumes what it began itself: nothing
  await approve(popup);
  await outcome(flow);
  assert.equal(await other.locator('.flow').count(), 0);
  await context.close();
});

test('cancelled at the provider, and in the starter', options, async () => {
  const { context } = await person(all.browser);
  await context.addInitScript(() => { window.close = () => {}; });
  const page = await starter(context);
  const { popup, flow } = await begin(page, 'oidc');
  await approve(popup);
  await popup.waitForURL('https://login.certified.example/interaction/**');
  await popup.click('a:has-text("Cancel")');
  await popup.waitForURL('https://chat.test/connect/done');
  assert.deepEqual(await outcome(flow), { service: 'oidc', error: 'cancelled' });
  await popup.getByText('Nothing was connected').waitFor();
  await accessible(popup, 'cancelled');

  const again = await begin(page, 'acme');
  await again.flow.locator('button.cancel').click();
  assert.deepEqual(await outcome(again.flow), { service: 'acme', error: 'cancelled' });
  await approve(again.popup); // too late: the key is gone
  await again.popup.waitForURL('https://chat.test/connect/done');
  await again.popup.getByText('Enter it only in your own Eleven').waitFor();
  assert.deepEqual(await stored(page), { handoff: 0, pending: 0 });
  await context.close();
});

test('a prefetched callback', options, async () => {
  const { context } = await person(all.browser);
  const page = await starter(context);
  const { popup, flow } = await begin(page, 'acme');
  const held = hold(popup, 'https://broker.test/oauth/acme/callback');
  await approve(popup);
  const callback = await held;
  const before = await all.calls();
  const evil = await context.newPage();
  await evil.goto('https://evil.test/');
  const [answer] = await Promise.all([
    evil.waitForResponse((r) => r.url() === callback),
    evil.evaluate((href) => { document.head.append(Object.assign(document.createElement('link'), { rel: 'prefetch', href })); }, callback),
  ]);
  assert.equal(answer.status(), 204);
  const headers = await answer.request().allHeaders();
  assert.match(headers['sec-purpose'] ?? headers['purpose'] ?? '', /prefetch/);
  assert.equal((await all.calls()).token, before.token);
  const loading = popup.goto(callback).catch(() => {}); // it closes itself
  assert.equal((await outcome(flow)).access, 'read');
  await loading;
  assert.equal((await all.calls()).token, (before.token ?? 0) + 1);
  await context.close();
});

test('a double click anywhere approves nothing', options, async () => {
  const { context } = await person(all.browser, { viewport: { width: 520, height: 720 } });
  const page = await context.newPage();
  let posts = 0;
  page.on('request', (r) => { if (r.method() === 'POST') posts++; });
  await page.goto(await foreign('acme', 'write', 'https://evil.test'));
  const { width, height } = await page.evaluate(() => ({ width: document.documentElement.clientWidth, height: document.documentElement.scrollHeight }));
  await page.setViewportSize({ width, height });
  let points = 0;
  for (let y = 6; y < height; y += 22) {
    for (let x = 12; x < width; x += 44) {
      await page.mouse.dblclick(x, y);
      points++;
      assert.equal(await page.locator('input[name=agree]').isChecked(), false, `ticked by a double click at ${x},${y}`);
    }
  }
  assert.equal(posts, 0);
  assert.ok(points > 150, `${points} points`);
  // Nor is a tick kept for whoever comes back.
  await page.check('input[name=agree]');
  await page.reload();
  assert.equal(await page.locator('input[name=agree]').isChecked(), false);
  await context.close();
});

test('form-action holds the redirects too', options, async () => {
  const { context } = await person(all.browser);
  // As it is served, the whole chain goes through (shown above). Without the provider, or without
  // the receiver, Chromium stops it: the list is needed, and it is enforced.
  for (const [name, ...drop] of [['provider', 'https://auth.acme.example', 'https://acme.example', 'https://*.acme.example'], ['receiver', 'https://chat.test'], ['broker', "'self'"]]) {
    const page = await context.newPage();
    await all.control(`/policy?${new URLSearchParams(drop.map((d) => ['drop', d]))}`);
    try {
      await page.goto(await foreign('acme'));
    } finally {
      await all.control('/policy');
    }
    await page.evaluate(() => document.addEventListener('securitypolicyviolation', (e) => { window.violated = e.effectiveDirective; }));
    await page.check('input[name=agree]');
    await page.evaluate(() => document.querySelector('button').click()); // a click of the tool's waits for a navigation that never is
    await page.waitForFunction(() => window.violated);
    assert.equal(await page.evaluate(() => window.violated), 'form-action', name);
    assert.match(page.url(), /^https:\/\/broker\.test\/oauth\/acme\/authorize/, `without the ${name}`);
    await page.close();
  }
  await context.close();
});

test('a foreign key: another number, words of warning, no code for write', options, async () => {
  const { context } = await person(all.browser);
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: 'https://chat.test' });
  const page = await starter(context);
  const { popup, number } = await begin(page, 'acme');
  for (const access of ['read', 'write']) {
    const victim = await context.newPage();
    await victim.goto(await foreign('acme', access));
    assert.ok(!(await victim.locator('.number').innerText()).includes(spaced(number)), 'the number is that of the page that began');
    await approve(victim);
    await victim.waitForURL('https://chat.test/connect/done');
    if (access === 'read') {
      await victim.getByText('Enter it only in your own Eleven. Whoever asks you for it wants your Acme.').waitFor();
      await pictures(victim, 'done-code');
      await victim.click('#copy');
      await victim.getByText('Copied.').waitFor();
      assert.match(await victim.evaluate(() => navigator.clipboard.readText()), /^v1\.[\w-]{43}\.acme\.read\./);
    } else {
      await victim.getByText('whoever asked you to sign in wants your Acme').waitFor();
      assert.equal(await victim.locator('#copy').isVisible(), false);
      assert.ok(!(await victim.content()).includes('v1.'), 'the code stands in the page');
      await pictures(victim, 'done-write');
    }
    assert.equal((await stored(victim)).handoff, 0, 'a stranger’s outcome was stored');
    await victim.close();
  }
  assert.equal(await page.locator('.outcome').count(), 0);
  await popup.close();
  await context.close();
});

test('a code from another browser', options, async () => {
  const home = await person(all.browser);
  const safari = await person(all.browser);
  await safari.context.addInitScript(() => { Object.defineProperty(navigator, 'clipboard', { value: { writeText: async () => { throw new Error('no'); } } }); });
  const page = await starter(home.context);
  const { popup, flow } = await begin(page, 'acme');
  const url = popup.url();
  await popup.close(); // the home-screen app's link opened elsewhere
  const there = await safari.context.newPage();
  await there.goto(url);
  await approve(there);
  await there.waitForURL('https://chat.test/connect/done');
  await there.click('#copy');
  const code = await there.inputValue('#text');
  await accessible(there, 'code by hand');
  // Neither another's code nor a changed one is taken; this one is, once.
  const enter = async (text) => {
    const n = await flow.locator('.entered').count();
    await flow.locator('input').fill(text);
    await flow.locator('button.enter').click();
    return flow.locator('.entered').nth(n).textContent();
  };
  for (const bad of ['', 'v1', code.replace('.read.', '.write.'), code.replace('.acme.', '.github.'), code.slice(0, -2) + (code.endsWith('AA') ? 'BB' : 'AA'), `${code}AAAA`, code.replace('v1.', 'v2.')]) {
    assert.equal(await enter(bad), 'false', bad.slice(0, 60));
  }
  assert.equal(await enter(`  ${code}\n`), 'true');
  assert.equal((await outcome(flow)).service, 'acme');
  await home.context.close();
  await safari.context.close();
});

test('no window: in the same tab', options, async () => {
  const { context } = await person(all.browser);
  await context.addInitScript(() => { window.open = () => null; });
  const page = await starter(context);
  await page.click('#begin');
  const flow = page.locator('.flow').first();
  assert.equal(await flow.locator('.blocked').textContent(), 'true');
  const number = await flow.locator('.number').textContent();
  await flow.locator('button.here').click();
  await page.waitForURL('https://broker.test/**');
  assert.ok((await page.locator('.number').innerText()).includes(spaced(number)));
  await approve(page);
  await page.waitForURL(STARTER);
  const got = await outcome(page.locator('.flow').first());
  assert.deepEqual([got.service, got.access], ['acme', 'read']);
  assert.deepEqual(await stored(page), { handoff: 0, pending: 0 });
  await context.close();
});

test('a page that was asleep looks when it wakes', options, async () => {
  const { context } = await person(all.browser);
  await context.addInitScript(() => {
    window.close = () => {};
    if (!location.pathname.startsWith('/test/')) return;
    window.BroadcastChannel = class { postMessage() {} close() {} }; // a page that sleeps hears nothing
  });
  const page = await starter(context);
  const { popup, number } = await begin(page, 'acme');
  await page.reload();
  const flow = page.locator('.flow').first();
  await flow.waitFor();
  assert.equal(await flow.locator('.number').textContent(), number, 'another sign-in was taken up');
  await approve(popup);
  await popup.getByText('Go back to Eleven and tap “I’ve signed in”.').waitFor();
  assert.equal(await popup.locator('#copy').isVisible(), false, 'a code is offered though somebody waits in this browser');
  await accessible(popup, 'asleep');
  await flow.locator('button.look').click();
  assert.equal((await outcome(flow)).service, 'acme');
  assert.deepEqual(await stored(page), { handoff: 0, pending: 0 });
  // And by itself, when the member comes back to it.
  const second = await begin(page, 'acme');
  await approve(second.popup);
  await second.popup.getByText('Go back to Eleven and tap “I’ve signed in”.').waitFor();
  await page.evaluate(() => window.dispatchEvent(new Event('focus')));
  assert.equal((await outcome(second.flow)).service, 'acme');
  await context.close();
});

test('an outcome too long for an address', options, async () => {
  const { context } = await person(all.browser);
  const page = await starter(context);
  const { popup, flow } = await begin(page, 'acme');
  await all.control('/pad?n=6000');
  try {
    await approve(popup);
    await popup.getByRole('link', { name: 'Back to chat.test' }).waitFor();
    await pictures(popup, 'long');
    await popup.click('a');
    assert.equal((await outcome(flow)).secret.length, 6003);
  } finally {
    await all.control('/pad?n=0');
  }
  await context.close();
});

test('ten minutes are enough', options, async () => {
  const { context } = await person(all.browser);
  const page = await starter(context);
  const { popup } = await begin(page, 'acme');
  const held = hold(popup, 'https://broker.test/oauth/acme/callback');
  await approve(popup);
  const at = await held;
  const before = await all.calls();
  await all.control('/advance?s=601');
  const answer = await popup.goto(at);
  assert.equal(answer.status(), 403);
  await popup.getByText('start again there').waitFor();
  assert.equal((await all.calls()).token, before.token);
  // In the browser, too, nothing older is taken up.
  await page.evaluate(async () => {
    const db = await new Promise((resolve) => { indexedDB.open('connect-flow', 1).onsuccess = (e) => resolve(e.target.result); });
    const s = db.transaction('pending', 'readwrite').objectStore('pending');
    s.getAll().onsuccess = (e) => { for (const p of e.target.result) s.put({ ...p, begun: p.begun - 601_000 }); };
  });
  await page.reload();
  await page.waitForTimeout(300);
  assert.equal(await page.locator('.flow').count(), 0);
  assert.deepEqual(await stored(page), { handoff: 0, pending: 0 });
  await context.close();
});

test('every other page of the broker', options, async () => {
  const { context } = await person(all.browser);
  const page = await context.newPage();
  for (const [name, url] of [['not-offered', 'https://broker.test/oauth/nobody/authorize'], ['malformed', 'https://broker.test/oauth/acme/authorize'],
    ['long-name', await foreign('acme', 'write', 'https://eleven.example.security-check.verify.very-long-name-that-goes-on-and-on-for-ever.evil.example')],
    ['program', await foreign('acme', 'read', 'http://127.0.0.1:4711/aaaaaaaaaaaaaaaa')], ['said', await foreign('stripe')], ['done-nothing', 'https://chat.test/connect/done#v1.x']]) {
    await page.goto(url);
    if (name === 'done-nothing') await page.getByText('Nothing to finish here').waitFor();
    await pictures(page, name);
  }
  await context.close();
});
