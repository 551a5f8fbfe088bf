// @ts-check
// What the browser tests stand on: a real broker with its fake providers (broker/internal/testbroker),
// npm's oidc-provider as a certified authorization server behind a TLS front, and Chromium, which is
// told where each of the test's names is.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { AxeBuilder } from '@axe-core/playwright';
// @ts-expect-error it has no types
import Provider from 'oidc-provider';
import { chromium } from 'playwright-core';

const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';

/** Why the tests cannot run here, or ''. */
export const missing = existsSync(CHROMIUM) ? '' : `${CHROMIUM} is not here; .ci/browser installs it`;

/** Where pictures go. */
export const artifacts = join(root, 'artifacts', 'flow');

/** The client's own secret, as brokertest has it. */
const SECRET = 'secret_SENTINEL_oidc+/=%';

/**
 * A certified authorization server, on plain HTTP: the broker's test process puts TLS before it.
 * @param {number} accessTTL
 */
async function authorizationServer(accessTTL) {
  const issuer = 'https://login.certified.example';
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'client-oidc', client_secret: SECRET, redirect_uris: ['https://broker.test/oauth/oidc/callback'],
      grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'], token_endpoint_auth_method: 'client_secret_post',
    }],
    scopes: ['openid', 'offline_access', 'tickets.read', 'tickets.write'],
    cookies: { keys: ['k'] }, pkce: { required: () => true },
    rotateRefreshToken: true, issueRefreshToken: async () => true,
    features: { devInteractions: { enabled: true }, revocation: { enabled: true } },
    ttl: { AccessToken: accessTTL, RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600, AuthorizationCode: 60 },
  });
  provider.proxy = true;
  const seen = { token: 0, revoked: /** @type {string[]} */ ([]), wrong: 0 };
  provider.use(async (/** @type {{path: string}} */ ctx, /** @type {() => Promise<void>} */ next) => {
    if (ctx.path === '/token') seen.token++;
    await next();
  });
  provider.on('refresh_token.destroyed', () => seen.revoked.push('refresh_token'));
  provider.on('grant.revoked', () => seen.revoked.push('grant'));
  provider.on('grant.error', () => seen.wrong++);
  const server = await new Promise((resolve) => {
    const s = provider.listen(0, '127.0.0.1', () => resolve(s));
  });
  return { server, seen, address: `http://127.0.0.1:${server.address().port}` };
}

/**
 * Starts everything; close ends it.
 * @param {{accessTTL?: number, args?: string[]}} [options] how many seconds an access token of the
 *   certified server lives, and further words for the broker's process
 */
export async function start({ accessTTL = 60, args = [] } = {}) {
  mkdirSync(artifacts, { recursive: true });
  const op = await authorizationServer(accessTTL);
  const bin = join(mkdtempSync(join(tmpdir(), 'connect-')), 'testbroker');
  execFileSync('go', ['build', '-o', bin, './broker/internal/testbroker'], { cwd: root, stdio: 'inherit' });
  const child = spawn(bin, ['-web', 'web', '-registry', 'web/test/registry', '-front', `login.certified.example=${op.address}`, ...args], { cwd: root, stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout });
  /** @type {Record<string, string>} */
  const at = await new Promise((resolve, reject) => {
    lines.once('line', (line) => resolve(JSON.parse(line)));
    child.once('exit', (code) => reject(new Error(`testbroker ended with ${code}`)));
  });
  const rules = Object.entries(at).filter(([host]) => host !== 'control').map(([host, to]) => `MAP ${host}:443 ${to}`);
  const browser = await chromium.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', `--host-resolver-rules=${[...rules, 'MAP * ~NOTFOUND', 'EXCLUDE 127.0.0.1'].join(', ')}`],
  });
  return {
    browser, op, at,
    /** How often each endpoint of the fake providers was asked. @returns {Promise<Record<string, number>>} */
    calls: async () => (await fetch(`${at.control}/calls`)).json(),
    /** @param {string} path */
    control: (path) => fetch(at.control + path, { method: 'POST' }),
    log: async () => (await fetch(`${at.control}/log`)).text(),
    async close() {
      await browser.close();
      child.stdin.end();
      op.server.closeAllConnections();
      op.server.close();
    },
  };
}

/**
 * A browser of one person: its own cookies and storage. What its pages complain of is kept.
 * @param {import('playwright-core').Browser} browser
 * @param {import('playwright-core').BrowserContextOptions} [options]
 */
export async function person(browser, options) {
  const context = await browser.newContext({ ignoreHTTPSErrors: true, ...options });
  context.setDefaultTimeout(15_000);
  /** @type {string[]} */
  const complaints = [];
  context.on('console', (m) => {
    const { url } = m.location();
    const ours = /^https:\/\/(broker|chat|other)\.test\//.test(url) && !url.endsWith('/favicon.ico');
    if (ours && (m.type() === 'error' || m.type() === 'warning')) complaints.push(m.text());
  });
  context.on('weberror', (e) => complaints.push(String(e.error())));
  return { context, complaints };
}

/**
 * Fails where axe finds anything.
 * @param {import('playwright-core').Page} page
 * @param {string} name
 */
export async function accessible(page, name) {
  const { violations } = await new AxeBuilder({ page }).analyze();
  if (violations.length > 0) {
    throw new Error(`${name}: ${violations.map((v) => `${v.id} (${v.help}): ${v.nodes.map((n) => n.html).join(' ')}`).join('; ')}`);
  }
}

/**
 * Takes pictures of a page, light and dark, wide and at 320 px, each held against axe and against
 * sideways scrolling.
 * @param {import('playwright-core').Page} page
 * @param {string} name
 */
export async function pictures(page, name) {
  const before = page.viewportSize();
  for (const scheme of /** @type {const} */ (['light', 'dark'])) {
    for (const width of [520, 320]) {
      await page.emulateMedia({ colorScheme: scheme });
      await page.setViewportSize({ width, height: 760 });
      if (width === 320) await accessible(page, `${name}, ${scheme}`);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (over > 0) throw new Error(`${name}: ${over} px too wide at ${width} px`);
      await page.screenshot({ path: join(artifacts, `${name}-${scheme}-${width}.png`), fullPage: true });
    }
  }
  await page.emulateMedia({ colorScheme: null });
  if (before) await page.setViewportSize(before);
}
