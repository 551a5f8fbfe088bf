// Package custody holds the wire formats of Connect and their cryptography: envelopes that
// only their recipient opens and only their sender can have made, and what travels in them:
// credentials, grants, operations, results, hand-backs.
//
// Whoever stores or relays an envelope learns its header and its length. The formats are
// described, byte for byte, in docs/protocol.md; custody/testdata/vectors holds one file for
// each outcome, which this package and its JavaScript counterpart both run.
//
// Parsing is strict everywhere: unknown or duplicate fields, loose base64url, trailing data
// and anything over its limit are refused.
package custody
