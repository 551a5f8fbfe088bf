// @ts-check
// The one place that knows which HPKE implementation is used: RFC 9180, base mode,
// DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-256-GCM.
import { Aes256Gcm, CipherSuite, DhkemP256HkdfSha256, HkdfSha256 } from '../vendor/hpke-core.js';

const suite = new CipherSuite({ kem: new DhkemP256HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes256Gcm() });
const ENC = 65; // bytes of an encapsulated key

/**
 * Seals plaintext: encapsulated key ‖ ciphertext.
 * @param {CryptoKey} publicKey
 * @param {Uint8Array<ArrayBuffer>} info
 * @param {Uint8Array<ArrayBuffer>} plaintext
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function hpkeSeal(publicKey, info, plaintext) {
  const { enc, ct } = await suite.seal({ recipientPublicKey: publicKey, info }, plaintext);
  const out = new Uint8Array(enc.byteLength + ct.byteLength);
  out.set(new Uint8Array(enc));
  out.set(new Uint8Array(ct), enc.byteLength);
  return out;
}

/**
 * Opens what hpkeSeal sealed.
 * @param {{privateKey: CryptoKey, publicKey: CryptoKey}} key Both halves: of a private key that is
 *   not extractable alone the library cannot derive the public one, and says so with an OpenError.
 * @param {Uint8Array<ArrayBuffer>} info
 * @param {Uint8Array<ArrayBuffer>} sealed
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function hpkeOpen(key, info, sealed) {
  const pt = await suite.open({ recipientKey: key, enc: sealed.slice(0, ENC).buffer, info }, sealed.subarray(ENC));
  return new Uint8Array(pt);
}
