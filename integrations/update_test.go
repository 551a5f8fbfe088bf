package integrations

import "flag"

var updateFlag = flag.Bool("update", false, "rewrite generated and golden files")

// updating says whether tests write what they would compare. Tests of both packages here
// share the flag.
func updating() bool { return *updateFlag }

// Updating is updating for the tests outside.
func Updating() bool { return updating() }
