package broker

import "flag"

// Update says that generated files are to be written, not compared.
var Update = flag.Bool("update", false, "write generated files")
