// Package services holds, of each built-in manifest, what connecting and refreshing need, as
// Go values: the loader would make a function a fifth larger and its start twice as long.
// They are generated from manifests that the loader took, and a test compares the two.
package services

import "github.com/elevenmessenger/connect/integrations"

//go:generate go test . -update

// Catalog is a broker.Catalog.
type Catalog struct{}

// Get returns a service, or nil.
func (Catalog) Get(id string) *integrations.Manifest {
	for _, m := range all {
		if m.ID == id {
			return m
		}
	}
	return nil
}

// All returns the services in the order of their ids.
func (Catalog) All() []*integrations.Manifest { return all }
