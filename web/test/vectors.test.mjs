// Runs custody/testdata/vectors, as the Go package does.
import assert from 'node:assert/strict';
import { readdir, readFile } from 'node:fs/promises';
import { test } from 'node:test';

import * as custody from '../lib/custody.js';
import { text as decodeText } from '../lib/custody-json.js';

const { CustodyError, parseJSON } = custody;
const dir = new URL('../../custody/testdata/vectors/', import.meta.url);
const files = (await readdir(dir)).filter((f) => f.endsWith('.json')).sort();
const manifestText = async (v) => (v.manifest === 'practice.json' ? readFile(new URL('../practice.json', dir), 'utf8') : v.manifest);

test('there are vectors', () => assert.ok(files.length >= 60, `${files.length} files in ${dir}`));

async function outcome(run) {
  try {
    await run();
    return 'success';
  } catch (err) {
    if (err instanceof CustodyError) return err.code;
    throw err;
  }
}

const bytes = custody.fromBase64url;

/** Args as a member's client has them: strictly read, in their one form. */
const canonicalArgs = (v) => parseJSON(v.canonical);

const kinds = {
  async envelope(v) {
    let text = v.envelope_bytes ? decodeText(bytes(v.envelope_bytes)) : (v.envelope ?? '');
    if (v.pad_to) text = text.padEnd(v.pad_to);
    const e = custody.parseEnvelope(text);
    const me = await custody.importIdentity(bytes(v.recipient_pkcs8)); // not extractable
    const from = v.sender_public ? await custody.importPublicKey(bytes(v.sender_public)) : undefined;
    const day = v.day_pkcs8 ? await custody.importIdentity(bytes(v.day_pkcs8)) : undefined;
    if (e.purpose !== v.purpose) throw new CustodyError('purpose', '');
    const plaintext = await custody.open(me, e, from, day);
    assert.equal(custody.base64url(plaintext), v.plaintext ?? '');
    const hash = await crypto.subtle.digest('SHA-256', plaintext);
    assert.equal(Buffer.from(hash).toString('hex'), v.plaintext_sha256);
  },

  message(v) {
    const header = { op: v.op };
    const m = custody.parseMessage(v.purpose, v.message ?? '', header, !!v.day);
    const text = custody.encodeMessage(v.purpose, m, header, !!v.day);
    assert.deepEqual(custody.parseMessage(v.purpose, text, header, !!v.day), m, 'written and read again');
  },

  async key(v) {
    const p = await custody.importPublicKey(bytes(v.public));
    assert.equal(p.id, v.key_id);
    assert.equal(await custody.checkNumber(p.point), v.check_number);
  },

  async op_digest(v) {
    const m = parseJSON(await manifestText(v));
    assert.equal(await custody.opDigest(m, v.op), v.digest);
    assert.equal(custody.jcs(custody.opText(m, v.op)), v.canonical);
    assert.equal(await custody.opDigest(JSON.parse(await manifestText(v)), v.op), v.digest);
  },

  async args_digest(v) {
    // To bring args into their one form is the manifest's matter; what has none is refused here too.
    if (!v.canonical) return custody.argsDigest(parseJSON(v.args));
    const args = canonicalArgs(v);
    assert.equal(custody.jcs(args), v.canonical);
    assert.equal(await custody.argsDigest(args), v.digest);
  },

  async say_digest(v) {
    assert.equal(await custody.sayDigest(v.sentence ?? ''), v.digest);
  },

  async preview_digest(v) {
    assert.equal(await custody.previewDigest(v.picked), v.digest);
    assert.equal(custody.jcs(parseJSON(v.picked, 'text')), v.canonical);
  },

  jcs(v) {
    assert.equal(custody.jcs(parseJSON(v.json)), v.canonical);
  },

  async handback(v) {
    const [c, h] = pair(v);
    taken(v, h, await custody.takeHandback(c, h));
  },

  async rotated(v) {
    const [c, h] = pair(v);
    taken(v, h, await custody.takeRotated(c, h, custody.parseEnvelope(v.envelope), v.proof));
  },

  fragment(v) {
    const e = custody.parseFragment(v.json.padEnd(v.pad_to ?? 0, '='));
    assert.equal(custody.marshalEnvelope(e), custody.marshalEnvelope(custody.parseEnvelope(v.envelope)));
  },

  async grant(v) {
    const manifest = parseJSON(await manifestText(v));
    const credential = JSON.parse(v.credential);
    const { op, args: _, needs_pair: needsPair, ...rest } = v.request;
    const request = { ...rest, needsPair, call: op && { op, args: canonicalArgs(v), sentence: v.sentence ?? '' } };
    const g = await custody.mintGrant(manifest, credential, request, v.now);
    assert.equal(custody.jcs(g), v.grant);
  },

  async memory(v) {
    let m = new custody.Memory();
    for (const [i, s] of v.steps.entries()) {
      let got = 'success';
      try {
        const { do: _, expect, ...c } = s;
        if (s.do === 'see') await m.see(c);
        else if (s.do === 'confirm') await m.confirm(c);
        else m.remove(s.id);
      } catch (err) {
        got = err.code;
      }
      assert.equal(got, s.expect, `step ${i}`);
      m = new custody.Memory(JSON.parse(JSON.stringify(m))); // as after a restart
    }
  },

  async legacy_credential(v) {
    const c = await custody.openLegacyCredential(await custody.importIdentity(bytes(v.recipient_pkcs8)), bytes(v.message));
    assert.equal(c.secret, v.sentence);
    assert.ok(custody.capAllows(c, 'read') && !custody.capAllows(c, 'write'));
  },
};

function pair(v) {
  const c = JSON.parse(v.credential);
  return [c, custody.parseMessage('handback', v.handback, { op: '' }, false)];
}

function taken(v, h, n) {
  assert.equal(n.pair, v.pair);
  assert.equal(n.generation, v.generation);
  assert.equal(n.secret, h.secret);
  assert.deepEqual({ ...n.keep }, v.keep ?? {});
  custody.encodeMessage('credential', n, { op: `${n.id}.${n.generation}` }, false);
}

for (const file of files) {
  const v = JSON.parse(await readFile(new URL(file, dir), 'utf8'));
  if (v.kind === 'legacy_op') {
    test(v.name, { skip: 'what clients of before sent is read by the sidecar alone' });
    continue;
  }
  test(v.name, async () => {
    assert.equal(`${v.name}.json`, file);
    const run = Object.hasOwn(kinds, v.kind) ? kinds[v.kind] : undefined;
    assert.ok(run, `the kind ${v.kind} is not known`);
    assert.equal(await outcome(() => run(v)), v.expect, v.about);
  });
}
