package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// dropInput forgets what was typed and not yet read.
func dropInput(console *os.File) { windows.FlushConsoleInputBuffer(windows.Handle(console.Fd())) }
