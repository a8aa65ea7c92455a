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
	applied  fate = iota // no error
	refused              // not applied, and trying again will not help
	retry                // not applied, later it may be
	reload               // not applied: the script must be loaded first
	stale                // not applied: the configuration must be read again
	unknown              // the reply was lost
	untimely             // not applied: the clock was not where it was expected
)

// errMoved is beside ErrUnavailable when another node may serve the key.
var errMoved = errors.New("queue: this redis does not serve the key")

// judge sorts an error of a script call.
func judge(err error) (fate, error) {
	if err == nil {
		return applied, nil
	}
	if errors.Is(err, errRun) {
		return retry, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	if errors.Is(err, engine.ErrUnsuitable) || errors.Is(err, engine.ErrDurability) || errors.Is(err, engine.ErrEviction) || errors.Is(err, engine.ErrFull) {
		return refused, err
	}
	if errors.Is(err, engine.ErrUnavailable) {
		return retry, err
	}
	if strings.Contains(err.Error(), "all sentinels specified in configuration are unreachable") { // it has no type
		return judgeSentinels(err)
	}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		return judgeReply(reply, err)
	}
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		return retry, fmt.Errorf("%w: %w: %w", engine.ErrUnavailable, errMoved, err)
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), strings.Contains(err.Error(), "cluster has no nodes"):
		return retry, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	case errors.Is(err, redis.ErrClosed):
		return refused, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	if errors.Is(err, engine.ErrUnknown) {
		return unknown, err
	}
	return unknown, fmt.Errorf("%w: %w", engine.ErrUnknown, err)
}

// notSent is the error of what was done before a transaction: whatever it was, the
// transaction was not applied.
func notSent(err error) error {
	if f, _ := judge(err); f == unknown {
		return fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	return err
}

// judgeReply sorts what Redis itself answered.
func judgeReply(reply redis.Error, err error) (fate, error) {
	text := strings.TrimPrefix(reply.Error(), "ERR ")
	code, _, _ := strings.Cut(text, " ")
	switch code {
	case "NOSCRIPT":
		return reload, err
	case "DPCONFIG":
		return stale, err
	case "DPCLOCK":
		c := &clockError{}
		if _, err := fmt.Sscanf(text, "DPCLOCK %d %d", &c.now, &c.off); err != nil {
			return refused, err
		}
		return untimely, c
	case "DPNOQUEUE":
		return refused, engine.ErrNoQueue
	case "DPLATE": // nobody waits for it any more
		return refused, engine.ErrUnknown
	case "DPPARTS":
		return refused, engine.ErrPartitions
	case "OOM":
		return refused, engine.ErrFull
	case "DPEVICT":
		_, policy, _ := strings.Cut(text, " ")
		return refused, evicts(policy)
	case "NOAUTH":
		return refused, fmt.Errorf("%w: redis asks for a password and none is set: %w", engine.ErrDenied, err)
	case "WRONGPASS":
		return refused, fmt.Errorf("%w: redis does not know this user and password: %w", engine.ErrDenied, err)
	case "NOPERM":
		return refused, fmt.Errorf("%w: the user's ACL lacks what the package doc of services/queue/redis lists: %w", engine.ErrDenied, err)
	case "MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN":
		// ASK is not followed: of the keys that a script declares some never
		// exist, so the importing node would answer TRYAGAIN until the slot is
		// its own, which MOVED then says.
		return retry, fmt.Errorf("%w: %w: %w", engine.ErrUnavailable, errMoved, err)
	case "LOADING", "READONLY", "MASTERDOWN", "BUSY", "MISCONF", "NOREPLICAS", "UNBLOCKED":
		return retry, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	switch {
	case strings.Contains(text, "OOM command not allowed"):
		return refused, engine.ErrFull
	case strings.Contains(text, "ACL failure in script"), strings.Contains(text, "can't run this command or subcommand"), strings.Contains(text, "NOPERM"):
		return refused, fmt.Errorf("%w: the user's ACL lacks what the package doc of services/queue/redis lists: %w", engine.ErrDenied, err)
	case strings.Contains(text, "invalid password"), strings.Contains(text, "without any password configured"):
		return refused, fmt.Errorf("%w: %w", engine.ErrDenied, err)
	case strings.Contains(text, "-READONLY"), strings.Contains(text, "READONLY You can't write"):
		return retry, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	case strings.Contains(text, "unknown command") && scripting(text), strings.Contains(text, "scripting engine"):
		return refused, fmt.Errorf("%w: redis has no Lua scripts (Valkey 9.1 has them as the module libvalkeylua): %w", engine.ErrUnsuitable, err)
	case strings.Contains(text, "cluster support disabled"):
		return refused, fmt.Errorf("%w: this is no node of a Redis Cluster: set redis:// instead of redis+cluster://: %w", engine.ErrUnsuitable, err)
	case strings.Contains(text, "unknown command"):
		return refused, fmt.Errorf("%w: %w", engine.ErrUnsuitable, err)
	}
	return refused, err
}

func scripting(text string) bool {
	upper := strings.ToUpper(text)
	return strings.Contains(upper, "'SCRIPT") || strings.Contains(upper, "'EVAL")
}

// judgeSentinels sorts why no sentinel told of a master.
func judgeSentinels(err error) (fate, error) {
	text := err.Error()
	switch {
	case errors.Is(err, redis.Nil):
		return retry, fmt.Errorf("%w: the sentinels know no master of this name: %w", engine.ErrUnavailable, err)
	case strings.Contains(text, "NOAUTH"), strings.Contains(text, "WRONGPASS"), strings.Contains(text, "NOPERM"):
		return refused, fmt.Errorf("%w: the sentinels refuse the user and password for sentinels: %w", engine.ErrDenied, err)
	case strings.Contains(text, "unknown command"):
		return refused, fmt.Errorf("%w: this is no sentinel: set redis:// instead of redis+sentinel://: %w", engine.ErrUnsuitable, err)
	}
	return retry, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
}

// classify gives an error of a command that may be repeated its sentinel.
func classify(err error) error {
	f, out := judge(err)
	if f == unknown && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	return out
}
