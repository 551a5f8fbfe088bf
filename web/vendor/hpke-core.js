// Written by web/vendor.mjs.
export { Aes256Gcm } from './hpke-core/src/aeads/aesGcm.js';
export { CipherSuite, DhkemP256HkdfSha256, HkdfSha256 } from './hpke-core/src/native.js';
