package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Sentinel errors of the log.
var (
	// ErrDeposed: a higher term is in the log; this writer has stopped for good.
	ErrDeposed = errors.New("stream: deposed by a newer leader")
	// ErrLogLost: the log's end is below what was acknowledged, or the log is gone; a new epoch must
	// begin.
	ErrLogLost = errors.New("stream: log is shorter than what was acknowledged")
	// ErrBootstrap: a position is not part of the log any more; read from the start and sweep.
	ErrBootstrap = errors.New("stream: position lost, bootstrap again")
	// ErrNoLog: the collection has no log yet.
	ErrNoLog = errors.New("stream: collection has no log")
	// ErrForeign: a stream of our name exists with a configuration that is not ours, or holds records
	// that no term explains.
	ErrForeign = errors.New("stream: log was made or written by somebody else")
	// ErrTooLarge: a record exceeds the payload limit of the log.
	ErrTooLarge = errors.New("stream: record too large")
	// ErrNoJetStream: the server, or the account on it, has no JetStream.
	ErrNoJetStream = errors.New("stream: nats has no jetstream here")
	// ErrLogFull: the server has no room for the log, on its disk or by its limits.
	ErrLogFull = errors.New("stream: log is full")
	// ErrUnavailable: the server does not answer, or says that it cannot now.
	ErrUnavailable = errors.New("stream: log is unavailable")
)

// The server's codes that say there is no room: for the account, on the server, in memory, on disk.
// The last is also that of other faults of the store, and its text says which.
const (
	codeAccountFull = 10002
	codeServerFull  = 10023
	codeMemoryFull  = 10028
	codeStoreFull   = 10047
	codeStoreFailed = 10077
)

// codeNoPeers is the server's when not enough of its cluster are there, as at its start.
const codeNoPeers = 10005

// noRoom are the words by which the server says, with codeStoreFailed, that a message did not fit.
var noRoom = []string{"no space left", "maximum bytes", "maximum messages", "quota", "insufficient", "resource"}

// Named adds to an error of NATS the sentinel that says what is wrong: [ErrNoJetStream],
// [ErrLogFull] or [ErrUnavailable]. Any other error comes back as it is.
func Named(err error) error {
	if err == nil {
		return nil
	}
	for _, known := range []error{ErrNoJetStream, ErrLogFull, ErrUnavailable, ErrForeign, ErrNoLog} {
		if errors.Is(err, known) {
			return err
		}
	}
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
	}
	switch answer, refused := errors.AsType[*jetstream.APIError](err); {
	case is(jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount, nats.ErrNoResponders):
		return fmt.Errorf("%w: %w", ErrNoJetStream, err)
	case refused && full(answer):
		return fmt.Errorf("%w: %w", ErrLogFull, err)
	case refused && (answer.Code >= 500 || answer.ErrorCode == codeNoPeers),
		is(nats.ErrTimeout, nats.ErrConnectionClosed, nats.ErrDisconnected, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded,
			nats.ErrNoServers, nats.ErrConnectionDraining, context.DeadlineExceeded):
		if is(nats.ErrReconnectBufExceeded) { // nothing is buffered here: this is how nats says that it is away
			err = nats.ErrDisconnected
		}
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

func full(e *jetstream.APIError) bool {
	switch e.ErrorCode {
	case codeAccountFull, codeServerFull, codeMemoryFull, codeStoreFull:
		return true
	case codeStoreFailed:
		text := strings.ToLower(e.Description)
		return slices.ContainsFunc(noRoom, func(w string) bool { return strings.Contains(text, w) })
	}
	return false
}

// HandlerError carries a handler's error out of a session, so that it is not taken for one of the
// log's.
type HandlerError struct{ Err error }

func (e *HandlerError) Error() string { return e.Err.Error() }
