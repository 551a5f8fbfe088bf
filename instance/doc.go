// Package instance is the reference instance: the messenger server of one space, as far as
// Connect needs one. It relays envelopes between members and bots, keeps sealed blobs for
// their owners, links a member's next device, and says which services can be connected.
//
// It holds nothing that opens anything: no private key ever comes here, what is sealed is
// stored as it came, and a session is kept as its digest. docs/instance.md is its API.
package instance
