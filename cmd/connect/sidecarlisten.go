package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// A sidecarAddress is what --listen says: a Unix socket, or a loopback address.
type sidecarAddress struct {
	socket string
	tcp    string
}

const sidecarListenHint = "such as --listen unix:/run/connect/sidecar.sock, or --listen 127.0.0.1:8390 with --bearer-file FILE"

// parseSidecarAddress reads --listen; left out, it is the socket in the folder.
func parseSidecarAddress(s, dir, bearerFile string) (sidecarAddress, error) {
	if s == "" {
		s = "unix:" + filepath.Join(dir, sidecarSocket)
	}
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		switch {
		case !filepath.IsAbs(path):
			return sidecarAddress{}, usagef(sidecarListenHint, "--listen: the socket's path begins at the root")
		case len(path) > 90: // what a system takes, less what the socket has for a moment
			return sidecarAddress{}, usagef("--listen unix:PATH puts it elsewhere", "the socket's path is too long: at most 90 bytes")
		case bearerFile != "":
			return sidecarAddress{}, usagef("a socket asks for no token: its mode lets nobody else in", "--bearer-file does not go with a socket")
		}
		return sidecarAddress{socket: filepath.Clean(path)}, nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || port == "" {
		return sidecarAddress{}, usagef(sidecarListenHint, "--listen is written unix:PATH or ADDRESS:PORT")
	}
	// A name may lead elsewhere, and a page in a browser may use it.
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return sidecarAddress{}, usagef(sidecarListenHint, "--listen takes a loopback address in digits only: who reaches the sidecar speaks for its members")
	}
	if bearerFile == "" {
		return sidecarAddress{}, usagef("--bearer-file FILE; a file that is not there is made", "every program on this machine reaches an address: it needs a bearer token")
	}
	return sidecarAddress{tcp: s}, nil
}

// listen opens the address. A socket is its owner's alone from its first moment on.
func (a sidecarAddress) listen() (net.Listener, error) {
	if a.tcp != "" {
		ln, err := net.Listen("tcp", a.tcp)
		if err != nil {
			return nil, &hintedError{fmt.Errorf("the sidecar cannot listen there: %w", err), "another program may hold that port; --listen takes another one"}
		}
		return ln, nil
	}
	if err := a.clear(); err != nil {
		return nil, err
	}
	if runtime.GOOS == "windows" {
		ln, err := net.Listen("unix", a.socket)
		if err != nil {
			return nil, fmt.Errorf("the sidecar cannot listen there: %w", err)
		}
		return ln, nil
	}
	// Between bind and chmod it would be open to others: it is made in a folder of its own.
	temp, err := os.MkdirTemp(filepath.Dir(a.socket), ".s")
	if err != nil {
		return nil, fmt.Errorf("the socket's folder: %w", withoutPath(err))
	}
	defer os.RemoveAll(temp)
	ln, err := net.Listen("unix", filepath.Join(temp, "s"))
	if err != nil {
		return nil, fmt.Errorf("the sidecar cannot listen there: %w", err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	err = os.Chmod(filepath.Join(temp, "s"), 0o600)
	if err == nil {
		err = os.Rename(filepath.Join(temp, "s"), a.socket)
	}
	if err != nil {
		ln.Close()
		return nil, fmt.Errorf("the socket: %w", linkError(withoutPath(err)))
	}
	return &socketListener{ln, a.socket}, nil
}

// A socketListener removes its socket, once.
type socketListener struct {
	net.Listener
	path string
}

func (l *socketListener) Close() error {
	err := l.Listener.Close()
	if err == nil {
		os.Remove(l.path)
	}
	return err
}

// clear removes a socket that nobody serves any more.
func (a sidecarAddress) clear() error {
	info, err := os.Lstat(a.socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("the socket: %w", withoutPath(err))
	case info.Mode().Type() != fs.ModeSocket && runtime.GOOS != "windows":
		return usagef("--listen unix:PATH takes another one", "where the socket belongs stands something else")
	}
	if c, err := net.DialTimeout("unix", a.socket, 2*time.Second); err == nil {
		c.Close()
		return refusedf("replicas of one folder have a socket each: --listen unix:PATH", "another sidecar answers on that socket")
	}
	if err := os.Remove(a.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the socket: %w", withoutPath(err))
	}
	return nil
}

func (a sidecarAddress) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	if a.socket != "" {
		return d.DialContext(ctx, "unix", a.socket)
	}
	return d.DialContext(ctx, "tcp", a.tcp)
}

// minBearer is how long a bearer token is at least.
const minBearer = 20

// bearer returns the token of a bearer file, and makes the file where there is none.
func bearer(file string, make bool) (integrations.Secret, error) {
	var none integrations.Secret
	if file == "" {
		return none, nil
	}
	if _, err := os.Lstat(file); make && errors.Is(err, fs.ErrNotExist) {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return none, usagef("", "--bearer-file: the file %w", withoutPath(err))
		}
		_, err = f.WriteString(rand.Text() + rand.Text() + "\n")
		if err = errors.Join(err, f.Close()); err != nil {
			return none, fmt.Errorf("--bearer-file: the file %w", withoutPath(err))
		}
	}
	text, err := readSecret("--bearer-file", file)
	if err != nil {
		return none, err
	}
	if len(text) < minBearer || strings.ContainsAny(text, " \t\r\n") {
		return none, usagef("remove it, and a good one is made", "--bearer-file: the file holds no token of at least %d characters", minBearer)
	}
	return integrations.NewSecret(text), nil
}
