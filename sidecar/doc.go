// Package sidecar is the device of one or more bots: it opens what members grant to them,
// checks it, runs the one operation that was granted, keeps expiring pairs fresh, and seals
// the outcome back to whoever granted it.
//
// Handle is the whole of it: an envelope in, envelopes out. Transports are thin over it.
// The checks, their order and their codes are those of docs/protocol.md, section 7; rotation
// is its section 8.
package sidecar
