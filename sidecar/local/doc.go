// Package local is the HTTP API by which a bot's own program, in any language, uses the
// sidecar on its machine. It is thin over [sidecar.Sidecar]; docs/sidecar-openapi.json
// describes it.
//
// Whoever may call it speaks for the transport: what it says of a message's author is taken.
// So it answers only on a socket that the bot's user alone opens, or on a loopback address
// to whoever shows the bearer token; never to a web page.
package local
