package client

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/attempt"
)

// newWait is the wait between attempts: 50 ms doubling to 2 s, with jitter.
func newWait() attempt.Wait {
	return attempt.Wait{First: 50 * time.Millisecond, Most: 2 * time.Second, Low: 0.5, High: 1}
}

func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// startUp is how long it is ordinary that something does not exist yet: services and
// their users may start in any order.
const startUp = 30 * time.Second

// warning logs what goes on failing: when it begins, when the reason changes,
// and once a minute. The zero value is ready.
type warning struct {
	began  time.Time
	report attempt.Report
}

func (c *warning) log(log *slog.Logger, msg string, err error, attrs ...any) {
	now, level := time.Now(), slog.LevelWarn
	if c.began.IsZero() {
		c.began = now
	}
	for _, expected := range []error{ErrNotSynced, ErrCollectionNotFound, ErrQueueNotFound} {
		if errors.Is(wrap(err, ""), expected) && now.Sub(c.began) < startUp {
			level = slog.LevelInfo
		}
	}
	if !c.report.Due(level.String() + err.Error()) {
		return
	}
	//nolint:forbidigo,sloglint // no trace belongs to it, and the callers' messages are constants
	log.Log(context.Background(), level, msg, append(attrs, slog.Any("error", err))...)
}

func (c *warning) over() { *c = warning{} }

// logger is where a configuration without one logs to: who wants silence says so.
func logger(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.Default() //nolint:forbidigo // a library's user finds out what fails without being asked for a logger
	}
	return log
}
