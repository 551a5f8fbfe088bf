package main

import (
	"errors"

	"github.com/rogpeppe/go-internal/testscript"
)

func execTyped(*testscript.TestScript, []string, string, []string) error {
	return errors.New("there is no pseudo-terminal here")
}
