package main

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// tryLock takes a file's lock, which ends when the file is closed. What is locked is a byte far
// behind the end: on Windows nobody else could read the ones that are.
func tryLock(f *os.File) (bool, error) {
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, windows.ERROR_LOCK_VIOLATION):
		return false, nil
	}
	return false, err
}
