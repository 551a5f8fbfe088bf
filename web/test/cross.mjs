// Run by the Go test TestNode: opens what Go sealed, and seals for Go. Its keys are not extractable.
// stdin: {me, peer, day, jobs: [{header, envelope, day}]}; stdout: [{plaintext, envelope}].
import { text } from 'node:stream/consumers';
import process from 'node:process';

import * as custody from '../lib/custody.js';

const input = JSON.parse(await text(process.stdin));
const me = await custody.importIdentity(custody.fromBase64url(input.me));
const peer = await custody.importPublicKey(custody.fromBase64url(input.peer));
const day = await custody.importIdentity(custody.fromBase64url(input.day));
const out = [];
for (const job of input.jobs) {
  const self = job.self ? me : peer; // some purposes go from a key to itself
  const plaintext = await custody.open(me, custody.parseEnvelope(job.envelope), self, job.day ? day : undefined);
  const back = job.unsigned ? null : await custody.seal(me, self, job.header, plaintext, job.day ? day : undefined);
  out.push({ plaintext: custody.base64url(plaintext), envelope: back && custody.marshalEnvelope(back) });
}
process.stdout.write(JSON.stringify(out));
