// Package broker is the one place that holds OAuth client secrets: it asks a member whether
// an instance may have a connection, exchanges the code, and refreshes and revokes pairs, for
// many instances at once. It has no store: what a flow needs rides sealed in the browser's
// cookie, and a refresh token leaves it only wrapped with a key that stays here.
//
// A Broker is a plain http.Handler: the four Lambda functions and "connect broker" serve it
// unchanged. docs/protocol.md describes its routes, docs/threat-model.md what they withstand.
package broker
