// What the vectors do not show: keys that are not extractable, and JSON beside JSON.parse.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import * as custody from '../lib/custody.js';
import { parseJSON, stringify } from '../lib/custody-json.js';

const code = (expected) => (err) => err instanceof custody.CustodyError && err.code === expected;
const utf8 = (s) => new TextEncoder().encode(s);
const header = { purpose: 'say', space: 'space', thread: 'thread' };

test('keys that are not extractable seal and open', async () => {
  const [ada, bot, day] = [await custody.newIdentity(), await custody.newIdentity(), await custody.newIdentity()];
  assert.equal(ada.privateKey.extractable, false);
  const e = await custody.seal(ada, bot, header, utf8('hi'));
  assert.equal(new TextDecoder().decode(await custody.open(bot, e, ada)), 'hi');
  const op = { purpose: 'op', op: custody.newID() };
  const dated = await custody.seal(ada, bot, op, utf8('hi'), day);
  assert.equal(new TextDecoder().decode(await custody.open(bot, dated, ada, day)), 'hi');
  await assert.rejects(custody.open(bot, dated, ada), code('day'));
  const own = await custody.seal(ada, ada, { purpose: 'credential', op: 'c1.1' }, utf8('hi'));
  assert.equal(new TextDecoder().decode(await custody.open(ada, own, ada)), 'hi');
});

test('every header field is bound', async () => {
  const [ada, bot] = [await custody.newIdentity(), await custody.newIdentity()];
  const e = await custody.seal(ada, bot, { ...header, purpose: 'op', op: custody.newID() }, utf8('hi'));
  const other = { purpose: 'revoke', space: 'other', thread: 'other', op: custody.newID(), from: bot.id, day: ada.id, v: 2, suite: 'other' };
  for (const [field, value] of Object.entries(other)) {
    await assert.rejects(custody.open(bot, { ...e, [field]: value }, ada), code('forged'), field);
  }
  await assert.rejects(custody.open(bot, { ...e, to: ada.id }, ada), code('not_mine'));
  await assert.rejects(custody.open(bot, { ...e, tag: undefined }, ada), code('forged'));
});

test('a header is checked before anything is sealed', async () => {
  const [ada, bot] = [await custody.newIdentity(), await custody.newIdentity()];
  for (const bad of [{ purpose: 'sai' }, { purpose: 'op', op: 'x' }, { purpose: 'say', space: 'a b' }, { purpose: 'credential', op: 'c1.1' }, { purpose: 'tab', op: 'a.read' }]) {
    await assert.rejects(custody.seal(ada, bot, bad, utf8('hi')), code('malformed'), JSON.stringify(bad));
  }
  await assert.rejects(custody.seal(ada, bot, header, new Uint8Array(50000)), code('too_big'));
});

test('a plaintext may be part of a larger buffer', async () => {
  const [ada, bot] = [await custody.newIdentity(), await custody.newIdentity()];
  const e = await custody.seal(ada, bot, header, utf8('abcdef').subarray(2, 4));
  assert.equal(new TextDecoder().decode(await custody.open(bot, e, ada)), 'cd');
});

test('an identity goes to the next device, and only the own one', async () => {
  const [ada, next, mallory] = [await custody.newIdentity(true), await custody.newIdentity(), await custody.newIdentity(true)];
  const e = await custody.sealIdentity(ada, next);
  const opened = await custody.openIdentity(next, e, ada);
  assert.equal(opened.id, ada.id);
  assert.equal(opened.privateKey.extractable, false);
  const foreign = await custody.seal(mallory, next, { purpose: 'identity' }, await custody.exportIdentity(ada));
  await assert.rejects(custody.openIdentity(next, foreign, mallory), code('malformed'));
});

test('a tab’s outcome is opened for what was asked', async () => {
  const tab = await custody.newIdentity();
  const e = custody.parseFragment(`v1.${tab.id}.github.read.${custody.base64url(new Uint8Array(90))}`);
  await assert.rejects(custody.openAnswer(tab, e, 'tab', 'github.write'), code('purpose'));
  await assert.rejects(custody.openAnswer(tab, e, 'tab', 'github.read'), code('open'));
});

test('a refresh token is lent to one group at a time', () => {
  const c = { generation: 1, lent: { group: 'g1', until: 100 } };
  assert.throws(() => custody.lend(c, 'g2', 200, 99, true), code('lent'));
  assert.throws(() => custody.lend(c, 'g2', 200, 131, false), code('lent'));
  assert.deepEqual(custody.lend(c, 'g2', 200, 131, true), { generation: 2, lent: { group: 'g2', until: 200 } });
  assert.deepEqual(custody.lend(c, 'g1', 50, 0, false), { generation: 2, lent: { group: 'g1', until: 100 } });
});

test('what JSON.parse takes is read the same, or refused', () => {
  const plain = (v) => JSON.parse(JSON.stringify(v, (_, x) => (typeof x === 'bigint' ? Number(x) : x)));
  let seed = 1;
  const random = (n) => (seed = (seed * 48271) % 0x7fffffff) % n;
  const texts = ['', 'a', '"\\/\b\f\n\r\t', '\u2028é😀', '__proto__', '\u0000\u007f'];
  const make = (depth) => {
    switch (random(depth > 4 ? 4 : 6)) {
      case 0: return texts[random(texts.length)];
      case 1: return [0, -1, 1.5, 1e21, 1e-7, 2 ** 53 - 1][random(6)];
      case 2: return [true, false, null][random(3)];
      case 3: return random(1000);
      case 4: return Array.from({ length: random(4) }, () => make(depth + 1));
      default: return Object.fromEntries(Array.from({ length: random(4) }, (_, i) => [texts[random(4)] + i, make(depth + 1)]));
    }
  };
  for (let i = 0; i < 2000; i++) {
    const v = make(0);
    const text = JSON.stringify(v, null, random(3));
    assert.deepEqual(plain(parseJSON(text)), v, text);
    assert.deepEqual(JSON.parse(stringify(v)), v);
    assert.deepEqual(JSON.parse(custody.jcs(v)), v);
    // A text that is cut or changed is never read as something that JSON.parse does not read.
    const at = random(text.length);
    const broken = text.slice(0, at) + ['', '"', '{', ',', '\\', '1'][random(6)] + text.slice(at + 1);
    let mine;
    try {
      mine = parseJSON(broken);
    } catch {
      continue;
    }
    assert.deepEqual(plain(mine), JSON.parse(broken), broken);
  }
});

test('base64url is strict', () => {
  for (let n = 0; n < 70; n++) {
    const b = crypto.getRandomValues(new Uint8Array(n));
    const s = custody.base64url(b);
    assert.equal(s, Buffer.from(b).toString('base64url'));
    assert.deepEqual(custody.fromBase64url(s), b);
  }
  for (const bad of ['A', 'AB', 'AAB', 'AA=', 'AA==', 'A A', 'A+', 'A/', 'AAAAA', 'é']) {
    assert.throws(() => custody.fromBase64url(bad), code('malformed'), bad);
  }
});
