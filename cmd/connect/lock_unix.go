//go:build unix && !solaris && !aix

package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes a file's lock, alone or beside others that share it. It ends when the file is
// closed.
func tryLock(f *os.File, shared bool) (bool, error) {
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	for {
		switch err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); {
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
