//go:build unix && !solaris && !aix

package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes a file's lock, which ends when the file is closed.
func tryLock(f *os.File) (bool, error) {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
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
