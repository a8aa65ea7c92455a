package reflector

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

var digits = regexp.MustCompile(`[0-9]+`)

// Cause is an error's text without what is a collection's own: its names, and numbers. Faults of
// several collections with one cause have one reason, such as an API server that is away.
func Cause(collection, text string) string {
	text = strings.ReplaceAll(text, collection, "*")
	if col, err := delta.ParseCollection(collection); err == nil {
		whole := col.Resource
		if col.Group != "" {
			whole += "." + col.Group
		}
		for _, own := range []string{
			"/apis/" + col.Group + "/" + col.Version + "/" + col.Resource, "/api/" + col.Version + "/" + col.Resource, whole + ":", whole + " ",
			`"` + col.Resource + `"`, `API group "` + col.Group + `"`,
		} {
			text = strings.ReplaceAll(text, own, "* ")
		}
	}
	return digits.ReplaceAllString(text, "#")
}

// logDeduplicator folds what many collections say at once. The first of equal faults, or of those
// who are well again after one, is logged as it comes, those that follow soon after in one line.
type logDeduplicator struct {
	slog *slog.Logger
	// loops runs what waits for others, until ctx returns one that has ended.
	loops *sync.WaitGroup
	ctx   func() context.Context

	mu   sync.Mutex
	said map[string]*loggedFault // guarded by mu
}

// loggedFault is something that was logged a moment ago.
type loggedFault struct {
	count int
	names []string
	last  time.Time
}

const (
	foldFor     = time.Second
	foldedNames = 3
	// recoveryFor is how long it may take until the last collection is well again, while one follows
	// the other.
	recoveryFor = 30 * time.Second
)

func newDeduplicator(log *slog.Logger, loops *sync.WaitGroup, ctx func() context.Context) *logDeduplicator {
	return &logDeduplicator{slog: log, loops: loops, ctx: ctx, said: map[string]*loggedFault{}}
}

// warn logs a collection's fault by say, or counts it with those that are equal.
func (c *logDeduplicator) warn(collection, stage, reason, text string, say func()) {
	c.fold(stage+"\x00"+reason+"\x00"+Cause(collection, text), collection, foldFor, say, func(n int, names string) {
		c.slog.LogAttrs(context.WithoutCancel(c.ctx()), slog.LevelWarn, "reflections failed alike", slog.Int(telemetry.KeyCount, n),
			slog.String(telemetry.KeyCollection, names), slog.String(telemetry.KeyCheck, stage), slog.String(telemetry.KeyReason, reason),
			slog.String(telemetry.KeyError, text))
	})
}

// well logs by say that a collection is well again, or counts it with the others that failed for
// the same reason.
func (c *logDeduplicator) well(collection, reason string, say func()) {
	c.fold("well\x00"+reason, collection, recoveryFor, say, func(n int, names string) {
		c.slog.LogAttrs(context.WithoutCancel(c.ctx()), slog.LevelInfo, "reflections are well again", slog.Int(telemetry.KeyCount, n),
			slog.String(telemetry.KeyCollection, names), slog.String(telemetry.KeyReason, reason))
	})
}

// fold says something for one collection, and then together for those that say the same, once none
// of them has for foldFor, or after longest.
func (c *logDeduplicator) fold(key, collection string, longest time.Duration, say func(), together func(n int, names string)) {
	c.mu.Lock()
	v := c.said[key]
	if v != nil {
		v.last = time.Now()
		if v.count++; len(v.names) < foldedNames {
			v.names = append(v.names, collection)
		}
		c.mu.Unlock()
		return
	}
	began := time.Now()
	v = &loggedFault{last: began}
	c.said[key] = v
	c.mu.Unlock()
	say()
	c.loops.Go(func() {
		for wait := foldFor; attempt.Sleep(c.ctx(), wait); {
			c.mu.Lock()
			wait = min(time.Until(v.last.Add(foldFor)), time.Until(began.Add(longest)))
			c.mu.Unlock()
			if wait <= 0 {
				break
			}
		}
		c.mu.Lock()
		delete(c.said, key)
		n, names := v.count, v.names
		c.mu.Unlock()
		if n > 0 {
			together(n, Names(names, n))
		}
	})
}

// Names are the first of n names, and how many more there are.
func Names(first []string, n int) string {
	text := strings.Join(first, ", ")
	if more := n - len(first); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
