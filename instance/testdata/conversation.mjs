// What a web client does at an instance, with keys that no script can export: it logs in, says
// something, reads what it was told, keeps a blob, and takes a link. Run by TestJavaScript.
import { readFileSync } from 'node:fs';
import {
  base64url, fromBase64url, importPublicKey, marshalEnvelope, newIdentity, openIdentity, openMessage, parseEnvelope, sealMessage,
} from '../../web/lib/custody.js';
import { hpkeOpen } from '../../web/lib/hpke.js';

const { origin, bot, code } = JSON.parse(readFileSync(0, 'utf8'));
const utf8 = (s) => new TextEncoder().encode(s);
const concat = (...parts) => Uint8Array.from(parts.flatMap((p) => [...p]));
const lp = (s) => { const b = utf8(s); return concat([0, 0, b.length >> 8, b.length & 255], b); };

async function ask(method, path, session, body) {
  const headers = session ? { authorization: `Bearer ${session}` } : {};
  if (body) headers['content-type'] = 'application/json';
  const res = await fetch(origin + path, { method, headers, body: body && JSON.stringify(body) });
  const answer = await res.json();
  return res.ok ? answer : Promise.reject(Object.assign(new Error(answer.error.message), answer.error));
}

async function login(me, join) {
  const { space, sealed } = await ask('POST', '/api/login', null, { key: base64url(me.point) });
  const nonce = await hpkeOpen(me, concat(utf8('connect/v1 login'), lp(space)), fromBase64url(sealed));
  return { space, ...await ask('POST', '/api/session', null, { key: base64url(me.point), nonce: base64url(nonce), join }) };
}

async function mac(...parts) {
  const key = await crypto.subtle.importKey('raw', utf8(code), { name: 'HMAC', hash: 'SHA-256' }, false, ['sign']);
  return new Uint8Array(await crypto.subtle.sign('HMAC', key, concat(...parts)));
}

// A second device, before it has a key: the code was typed.
const once = await newIdentity();
const link = `/api/links/${base64url((await mac(utf8('connect/v1 link'))).slice(0, 16))}`;
const { ticket } = await ask('POST', `${link}/offer`, null, { key: base64url(once.point), mac: base64url(await mac(once.point)) });
let linked;
while (!linked) {
  linked = await ask('POST', `${link}/fetch`, null, { ticket }).catch((e) => {
    if (e.code !== 'pending') throw e;
    return new Promise((wake) => setTimeout(wake, 20));
  });
}
const member = await importPublicKey(fromBase64url(linked.key));
if (linked.mac !== base64url(await mac(utf8('connect/v1 linked'), member.point, once.point))) throw new Error('the instance made this identity');
const me = await openIdentity(once, parseEnvelope(JSON.stringify(linked.envelope)), member);

const { space, session, me: record } = await login(me);
const peer = await importPublicKey(fromBase64url((await ask('GET', `/api/members/${bot}`, session)).key));
if (peer.id !== bot) throw new Error('another key');
const { messages } = await ask('GET', '/api/messages?since=0', session);
const told = await openMessage(me, parseEnvelope(JSON.stringify(messages[0].envelope)), 'say', peer);
const header = { purpose: 'say', space, thread: messages[0].envelope.thread };
const answer = await sealMessage(me, peer, header, { v: 1, id: base64url(crypto.getRandomValues(new Uint8Array(16))), at: 1, text: `I heard: ${told.text}` });
await ask('POST', '/api/messages', session, { id: 'a1', thread: header.thread, envelope: JSON.parse(marshalEnvelope(answer)) });
console.log(JSON.stringify({ id: me.id, kind: record.kind, author: messages[0].author }));
