// A sign-in that the command begins: the real program, a running broker, a certified authorization
// server, and Chromium between them. Then what becomes of the connection: renewed twice, and ended.
// The program is built with one more manifest, the one of the certified server.
import assert from 'node:assert/strict';
import { execFile, execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { missing, person, pictures, start } from './browser.mjs';

const options = missing && !process.env.CI ? { skip: missing } : {};
const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const dir = mkdtempSync(join(tmpdir(), 'connect-cli-'));
const bin = join(dir, 'connect');
const home = join(dir, 'home');
const BROKER = 'https://broker.test';
const TTL = 10; // seconds that an access token lives; it is renewed from the half of it on

/** @type {Awaited<ReturnType<typeof start>>} */
let all;
/** The words by which the program reaches this test's broker and service. @type {string[]} */
let network;

before(async () => {
  if (options.skip) return;
  assert.equal(missing, '');
  const overlay = join(dir, 'overlay.json');
  writeFileSync(overlay, JSON.stringify({ Replace: { [join(root, 'integrations/registry/oidc.json')]: join(root, 'web/test/registry/oidc.json') } }));
  execFileSync('go', ['build', '-overlay', overlay, '-o', bin, './cmd/connect'], { cwd: root, stdio: 'inherit' });

  // The operator makes the pair that signs tokens; the broker gets the public half.
  const made = await run(['broker', 'token', 'keys', '--instance']);
  writeFileSync(join(dir, 'instance.pem'), made.out, { mode: 0o600 });
  const [, key] = /^CONNECT_INSTANCE_KEYS=(.+)$/m.exec(made.err) ?? [];
  all = await start({ accessTTL: TTL, args: ['-instance-key', key] });
  // The broker's clock stands where the tests of flows want it; a token is signed by the true one.
  const now = (Date.now() - Date.UTC(2026, 11, 1, 12)) / 1000;
  assert.equal((await all.control(`/advance?s=${Math.round(now)}`)).status, 200);
  writeFileSync(join(dir, 'ca.pem'), await (await fetch(`${all.at.control}/ca`)).text());
  network = ['--connect-to', `broker.test:443:${all.at['broker.test']}`, '--connect-to', `login.certified.example:443:${all.at['login.certified.example']}`, '--cacert', join(dir, 'ca.pem')];
});
after(() => all?.close());

/**
 * Runs the program to its end.
 * @param {string[]} words
 * @returns {Promise<{code: number, out: string, err: string}>}
 */
function run(words) {
  return new Promise((resolve) => {
    const child = execFile(bin, words, (e, out, err) => resolve({ code: child.exitCode ?? -1, out, err }));
    child.stdin?.end();
  });
}

/** Runs one command with this member's folder, and holds its exit code. */
async function connect(code, ...words) {
  const got = await run([...words, '--home', home]);
  assert.equal(got.code, code, `connect ${words.join(' ')}: ${got.err}`);
  return got;
}

/** Begins a sign-in; done is what comes of it. */
async function add(...words) {
  const child = spawn(bin, ['add', 'oidc', '--broker', BROKER, '--home', home, ...network, ...words], { stdio: ['ignore', 'ignore', 'pipe'] });
  let said = '';
  const done = new Promise((resolve) => child.once('exit', (code) => resolve({ code, said: () => said })));
  await new Promise((resolve, reject) => {
    child.stderr.on('data', (b) => {
      said += b;
      if (/^The page shows the number/m.test(said)) resolve(undefined);
    });
    child.once('exit', () => reject(new Error(`it ended at once: ${said}`)));
  });
  return {
    address: /^ {2}(https:\S+)$/m.exec(said)?.[1] ?? '',
    number: /^The page shows the number (\d{3} \d{3})\./m.exec(said)?.[1] ?? '',
    said: () => said, done,
  };
}

test('a sign-in that the command begins, renewed twice and ended', options, async () => {
  // The member tells the key, and the operator signs a token for it.
  const { id } = JSON.parse((await connect(0, 'key', '--json')).out);
  const signed = await run(['broker', 'token', 'sign', '--key-file', join(dir, 'instance.pem'), '--issuer', 'ada', '--broker', BROKER, '--cli', id]);
  assert.equal(signed.code, 0, signed.err);
  writeFileSync(join(dir, 'token'), signed.out, { mode: 0o600 });

  const flow = await add('--broker-token-file', join(dir, 'token'));
  assert.ok(!flow.said().includes('ends with its access token'), flow.said());
  const { context } = await person(all.browser);
  const page = await context.newPage();
  await page.goto(flow.address);
  const text = await page.locator('main').innerText();
  assert.match(text, /a program on this computer/i);
  assert.ok(text.includes(flow.number), `the consent page does not show ${flow.number}: ${text}`);
  const back = new URL(new URL(flow.address).searchParams.get('return_to') ?? '');
  assert.equal(back.hostname, '127.0.0.1');

  // Another site in the same browser hands the program nothing.
  const evil = await context.newPage();
  await evil.goto('https://evil.test/');
  const tried = await evil.evaluate(async (to) => fetch(to, { method: 'POST', mode: 'no-cors', body: 'v1.x' }).then((r) => r.type, () => 'blocked'), `${back}/connect/done`);
  assert.ok(['opaque', 'blocked'].includes(tried), tried);
  await evil.close();

  await page.check('input[name=agree]');
  await page.click('button[type=submit]');
  await page.waitForURL('https://login.certified.example/interaction/**');
  await page.fill('input[name=login]', 'ada');
  await page.fill('input[name=password]', 'x');
  await page.click('button[type=submit]');
  await page.waitForSelector('button[type=submit]:has-text("Continue")');
  /** @type {string[]} */
  const refused = [];
  page.on('response', (r) => { if (r.url().startsWith(back.origin) && r.status() >= 400 && !r.url().endsWith('/favicon.ico')) refused.push(`${r.status()} ${r.url()}`); });
  await page.click('button[type=submit]');
  await page.getByText('Received. You can close this page and go back to the terminal.').waitFor();
  assert.equal(page.url(), `${back}/connect/done`, 'the outcome stands in the address');
  assert.deepEqual(refused, []);
  await pictures(page, 'loopback');
  const { code, said } = await flow.done;
  assert.equal(code, 0, said());
  assert.match(said(), /^Certified is connected: ada, read-only\.$/m);
  await page.reload().catch(() => {}); // nobody is there any more
  assert.equal(await page.getByText('Received').count(), 0);
  await context.close();

  const [listed] = JSON.parse((await connect(0, 'list', '--json')).out);
  assert.deepEqual([listed.service, listed.kind, listed.cap, listed.account.label, listed.refreshes], ['oidc', 'oauth', 'read', 'ada', true]);
  assert.match((await connect(0, 'list')).out, /^oidc +ada +read-only .* refreshes itself/m);

  // Fresh, it is used as it is; over, it is renewed, and the pair that came of that again.
  const before = all.op.seen.token;
  for (const [wait, tokens] of [[0, 0], [TTL * 1000 + 500, 1], [TTL * 500 + 500, 2]]) {
    await sleep(wait);
    const { out } = await connect(0, 'op', 'oidc', 'whoami', '--json', ...network);
    assert.deepEqual(JSON.parse(out), { ok: true, result: { sub: 'ada' } });
    assert.equal(all.op.seen.token - before, tokens, `after ${wait} ms`);
  }
  assert.equal(all.op.seen.wrong, 0, 'a token was redeemed twice');

  // Removing ends it at the server, then here.
  assert.deepEqual(all.op.seen.revoked, []);
  const removed = await connect(0, 'remove', 'oidc', ...network);
  assert.match(removed.err, /^Certified has ended the connection\.\nCertified is no longer connected here: ada\.$/m);
  assert.deepEqual(all.op.seen.revoked, ['refresh_token', 'grant']);
  assert.deepEqual(readdirSync(join(home, 'connections')), []);
  const log = await all.log();
  assert.ok(log.includes('/api/refresh') && log.includes('/api/revoke') && !log.includes('rt1.'), log);
});

test('a sign-in that is left in the browser stores nothing', options, async () => {
  const flow = await add();
  const { context } = await person(all.browser);
  const page = await context.newPage();
  await page.goto(flow.address);
  await page.check('input[name=agree]');
  await page.click('button[type=submit]');
  await page.waitForURL('https://login.certified.example/interaction/**');
  await page.click('a:has-text("Abort"), a:has-text("Cancel")');
  await page.getByText('Received').waitFor();
  const { code, said } = await flow.done;
  assert.equal(code, 3, said());
  assert.match(said(), /^error: it was cancelled in the browser/m);
  assert.match((await connect(0, 'list')).err, /Nothing is connected/);
  await context.close();
});
