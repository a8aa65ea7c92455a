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
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

var digits = regexp.MustCompile(`[0-9]+`)

// Cause is an error's text without what is a collection's own: its names, and numbers. Faults of several collections with one cause have one
// reason, such as an API server that is away.
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

// chorus folds what many collections say at once. The first of equal faults is logged as it comes, those that follow soon after in one line.
type chorus struct {
	slog *slog.Logger
	// loops runs what waits for others, until ctx returns one that has ended.
	loops *sync.WaitGroup
	ctx   func() context.Context

	mu   sync.Mutex
	said map[string]*verse // guarded by mu
}

// verse is one fault that was logged a moment ago.
type verse struct {
	count int
	names []string
}

const (
	chorusFor   = time.Second
	chorusNames = 3
)

func newChorus(log *slog.Logger, loops *sync.WaitGroup, ctx func() context.Context) *chorus {
	return &chorus{slog: log, loops: loops, ctx: ctx, said: map[string]*verse{}}
}

// warn logs a collection's fault by say, or counts it with those that are equal.
func (c *chorus) warn(collection, stage, reason, text string, say func()) {
	key := stage + "\x00" + reason + "\x00" + Cause(collection, text)
	c.mu.Lock()
	v := c.said[key]
	if v != nil {
		if v.count++; len(v.names) < chorusNames {
			v.names = append(v.names, collection)
		}
		c.mu.Unlock()
		return
	}
	v = &verse{}
	c.said[key] = v
	c.mu.Unlock()
	say()
	c.loops.Go(func() {
		sleep(c.ctx(), chorusFor)
		c.mu.Lock()
		delete(c.said, key)
		n, names := v.count, v.names
		c.mu.Unlock()
		if n > 0 {
			c.slog.LogAttrs(context.WithoutCancel(c.ctx()), slog.LevelWarn, "reflections failed alike", slog.Int(telemetry.KeyCount, n),
				slog.String(telemetry.KeyCollection, Names(names, n)), slog.String(telemetry.KeyCheck, stage), slog.String(telemetry.KeyReason, reason),
				slog.String(telemetry.KeyError, text))
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
