package client

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Why an instance refuses, for [errors.Is]; Error has the rest.
var (
	ErrUnreachable = errors.New("client: the instance cannot be reached")
	ErrSession     = errors.New("client: the session has ended")
	ErrUnknownKey  = errors.New("client: this key has not joined the space")
	ErrInvite      = errors.New("client: this is not the space's invite")
	ErrNotFound    = errors.New("client: there is no such thing")
	ErrConflict    = errors.New("client: the blob is of another generation")
	ErrDeleted     = errors.New("client: the blob was deleted")
	ErrTaken       = errors.New("client: the id stands for something else")
	ErrTooLarge    = errors.New("client: larger than a message may be")
	ErrReader      = errors.New("client: its reader does not share the thread")
	ErrQuota       = errors.New("client: this author has filled the reader's log")
	ErrTooMany     = errors.New("client: too many requests")
	// ErrCursor means that the instance's store is older than what was read from it:
	// whoever reads begins again at 0.
	ErrCursor = errors.New("client: the cursor is ahead of the instance")
)

var errAnswer = errors.New("client: this is no answer of an instance")

var byCode = map[string]error{
	"session": ErrSession, "unknown_key": ErrUnknownKey, "invite": ErrInvite, "conflict": ErrConflict, "deleted": ErrDeleted,
	"id_taken": ErrTaken, "too_large": ErrTooLarge, "reader": ErrReader, "quota": ErrQuota, "too_many": ErrTooMany, "cursor": ErrCursor,
	"no_such_member": ErrNotFound, "no_such_thread": ErrNotFound, "no_such_blob": ErrNotFound, "no_such_link": ErrNotFound, "not_found": ErrNotFound,
}

// An Error is an instance's refusal. docs/instance.md lists the codes.
type Error struct {
	Status     int
	Code       string
	Message    string
	Generation int64         // of ErrConflict and ErrDeleted: the one that is there
	RetryAfter time.Duration // 0 where the instance did not say
}

func (e *Error) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("client: the instance answers %d", e.Status)
	}
	return fmt.Sprintf("client: %s (%s)", e.Message, e.Code)
}

// Unwrap returns the class of the refusal, or nil.
func (e *Error) Unwrap() error { return byCode[e.Code] }

// unreachable drops the address from an error of net/http.
func unreachable(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// passing says whether another try may go better.
func passing(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		return e.Status == http.StatusTooManyRequests || e.Status >= 500 && e.Status != http.StatusInsufficientStorage
	}
	return errors.Is(err, ErrUnreachable)
}
