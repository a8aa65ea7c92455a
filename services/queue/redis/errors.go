package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// fate is what an error says about the command it came from.
type fate int

const (
	applied fate = iota // no error
	refused             // not applied, and trying again will not help
	retry               // not applied, later it may be
	reload              // not applied: the script must be loaded first
	stale               // not applied: the configuration must be read again
	unknown             // the reply was lost
)

// judge sorts an error of a script call.
func judge(err error) (fate, error) {
	if err == nil {
		return applied, nil
	}
	if errors.Is(err, errRun) {
		return retry, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		code, _, _ := strings.Cut(strings.TrimPrefix(reply.Error(), "ERR "), " ")
		switch code {
		case "NOSCRIPT":
			return reload, err
		case "DPCONFIG":
			return stale, err
		case "DPNOQUEUE":
			return refused, engine.ErrNoQueue
		case "DPPARTS":
			return refused, engine.ErrPartitions
		case "OOM":
			return refused, engine.ErrFull
		case "NOAUTH", "WRONGPASS", "NOPERM":
			return refused, fmt.Errorf("%w: %w", engine.ErrDenied, err)
		case "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "NOREPLICAS":
			return retry, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
		}
		if strings.Contains(reply.Error(), "OOM command not allowed") {
			return refused, engine.ErrFull
		}
		return refused, err
	}
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return retry, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	case errors.Is(err, redis.ErrClosed):
		return refused, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	return unknown, fmt.Errorf("%w: %w", engine.ErrUnknown, err)
}

// classify gives an error of a command that may be repeated its sentinel.
func classify(err error) error {
	f, out := judge(err)
	if f == unknown && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	return out
}
