//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// dropInput forgets what was typed and not yet read.
func dropInput(tty *os.File) { unix.IoctlSetPointerInt(int(tty.Fd()), unix.TIOCFLUSH, 1) } // 1: the input side
