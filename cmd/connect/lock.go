package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// How long another process may hold a connection: a little longer than a broker takes.
const (
	lockWait = time.Minute
	lockPoll = 50 * time.Millisecond
)

// A vaultLock keeps other processes from changing one connection, and remembers which pair
// cannot be renewed any more. The operating system lets go of it with the process.
type vaultLock struct{ file *os.File }

func (v *vault) lockFile(id string) string { return filepath.Join(v.dir, vaultFolder, id+".lock") }

// lock waits for a connection. Whoever has it reads the connection anew: another may have
// changed or removed it.
func (v *vault) lock(ctx context.Context, id string) (*vaultLock, error) {
	return lockPath(ctx, v.lockFile(id))
}

// lockAdd waits until no other process stores a connection that it has just made: two of one
// account become one.
func (v *vault) lockAdd(ctx context.Context) (*vaultLock, error) {
	return lockPath(ctx, filepath.Join(v.dir, vaultAddLock))
}

func lockPath(ctx context.Context, file string) (*vaultLock, error) {
	// A folder or a link in the lock's place is nothing of ours. It keeps nobody from a
	// connection, where it can be put aside without losing anything.
	if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() && os.Remove(file) != nil {
		return nil, refusedf("look what it is, and remove it", "the stored connection cannot be locked: %s is no file", file)
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the stored connection cannot be locked: %w", withoutPath(err))
	}
	for end := time.Now().Add(lockWait); ; {
		got, err := tryLock(f, false)
		switch {
		case err != nil:
			f.Close()
			return nil, fmt.Errorf("the stored connection cannot be locked: %w", err)
		case got:
			return &vaultLock{f}, nil
		case time.Now().After(end):
			f.Close()
			return nil, &integrations.RefusedError{Reason: "another connect has been at this connection for a minute", Hint: "wait for it, or end it"}
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, &integrations.RefusedError{Reason: "it was left while another connect was at this connection"}
		case <-time.After(lockPoll):
		}
	}
}

func (l *vaultLock) release() { l.file.Close() }

// spent returns the number of the pair that was marked, or -1. What cannot be read marks none:
// the next mark writes it anew.
func (l *vaultLock) spent() (int64, error) {
	b, err := io.ReadAll(io.NewSectionReader(l.file, 0, 64))
	if err != nil {
		return 0, fmt.Errorf("the stored connection's lock: %w", withoutPath(err))
	}
	text := strings.TrimSpace(string(b))
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1, nil
	}
	return n, nil
}

// mark notes that a pair cannot be renewed any more: the connection is over when the pair is.
// -1 takes it back. What decides is the local bot's store; this is for whoever lists.
func (l *vaultLock) mark(pair int64) error {
	err := l.file.Truncate(0)
	if err == nil && pair >= 0 {
		_, err = l.file.WriteAt([]byte(strconv.FormatInt(pair, 10)+"\n"), 0)
	}
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("the stored connection's lock: %w", withoutPath(err))
	}
	return nil
}
