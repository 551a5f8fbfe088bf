//go:build unix && !solaris && !aix

package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// trySharedLock takes a file's lock beside others that share it.
func trySharedLock(f *os.File) (bool, error) {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		default:
			return false, err
		}
	}
}
