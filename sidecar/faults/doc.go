// Package faults holds tests alone: sidecars that run as processes of their own, before the
// real broker and before providers, while they are killed and the network between them is
// broken. What they show is that a pair which a provider gave is not lost, and that nothing
// runs twice.
package faults
