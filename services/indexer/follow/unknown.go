package follow

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// mostUnknown bounds what is named of one log. Records beyond it are still counted.
const mostUnknown = 16

// unknowns is what a log holds that this build does not know.
type unknowns struct {
	newer  atomic.Pointer[delta.NewerError] // reading stands still before this record; nil while it goes on
	passed atomic.Pointer[[]string]         // what was passed over, each once

	counted uint64 // the last record that reading stood still before
}

// noteUnknown names and counts what this build does not know in a batch.
func (c *Collection) noteUnknown(ctx context.Context, b *delta.Batch) {
	for _, p := range b.Passed {
		c.passOver(ctx, p.Unknown)
	}
	for i := range b.Records {
		if r := &b.Records[i]; r.Tombstone() && !r.DeleteReason.Known() {
			c.passOver(ctx, &delta.UnknownError{Part: delta.PartReason, Value: strings.Clone(string(r.DeleteReason))})
		}
	}
	before := c.newer.Swap(b.Newer)
	if b.Newer == nil {
		return
	}
	if b.Newer.Sequence != c.counted || before == nil {
		c.counted = b.Newer.Sequence
		c.metrics.unknown.WithLabelValues(c.Label, string(b.Newer.Unknown.Part)).Inc()
	}
	if before == nil {
		c.slog.LogAttrs(ctx, slog.LevelError, "the log cannot be read on", slog.String(telemetry.KeyCollection, c.Name), telemetry.Err(b.Newer))
	}
}

// passOver names a record that is taken, or passed over, without what is not known of it.
func (c *Collection) passOver(ctx context.Context, u *delta.UnknownError) {
	c.metrics.unknown.WithLabelValues(c.Label, string(u.Part)).Inc()
	var named []string
	if p := c.passed.Load(); p != nil {
		named = *p
	}
	text := fmt.Sprintf("%s %q", u.Part, u.Value)
	if len(named) == mostUnknown || slices.Contains(named, text) {
		return
	}
	named = append(slices.Clip(named), text)
	c.passed.Store(&named)
	c.slog.LogAttrs(ctx, slog.LevelWarn, "the log has something of a later build, which is passed over",
		slog.String(telemetry.KeyCollection, c.Name), slog.String(telemetry.KeyReason, text))
}

// Unknown names what of the log this build has passed over, such as `kind "x"`.
func (c *Collection) Unknown() []string {
	if p := c.passed.Load(); p != nil {
		return *p
	}
	return nil
}

// Newer says why reading stands still before a record that a later build must read; nil while it
// goes on.
func (c *Collection) Newer() error {
	if n := c.newer.Load(); n != nil {
		return n
	}
	return nil
}

// Because adds to what is said of a collection that it is for want of a later build.
func (c *Collection) Because(text string) string {
	if err := c.Newer(); err != nil {
		return text + ": " + err.Error()
	}
	return text
}

// CheckNewer tells of collections whose logs have to be read by a later build.
func (s *Collections) CheckNewer(context.Context) error {
	n, first := 0, ""
	var why error
	for _, c := range s.names.Load().All {
		err := c.Newer()
		if err == nil {
			continue
		}
		if n++; why == nil || c.Name < first {
			first, why = c.Name, err
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d collections stand still: %s: %w", n, first, why)
}
