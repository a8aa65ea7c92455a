package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/deltalog"
	"github.com/deltaplane/deltaplane/core/delta"
)

// logSource follows the delta log for collections of which every change counts. The others need to
// look into objects, for which there is the index.
type logSource struct {
	c     *Controller
	index source
}

// quietPosition is how often the position of a log is passed on in which no object changes.
const quietPosition = 10 * time.Second

func (s *logSource) follow(ctx context.Context, w *watched, from position, least client.Revision, take func(step)) error {
	if !w.onLog {
		return s.index.follow(ctx, w, from, least, take)
	}
	collection, err := delta.ParseCollection(w.collection)
	if err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	place, err := parseLogPosition(from)
	if err != nil {
		return err
	}
	r := logReading{
		take: take, resumed: from != "", told: time.Now(),
		stands: func(err error) { s.c.watchFailed(w, err) },
	}
	return s.c.o.Deltas.Follow(ctx, collection, place, r.batch)
}

// logReading makes steps of what a log says.
type logReading struct {
	take    func(step)
	stands  func(error) // is called with why the log cannot be read on
	resumed bool        // there was a position
	replay  bool
	upper   client.Revision // of the last record
	told    time.Time       // when a position was last passed on
}

func (r *logReading) batch(_ context.Context, b delta.Batch, at deltalog.Position) error {
	if b.Newer != nil {
		r.stands(b.Newer)
		return nil
	}
	if b.Reset {
		if r.resumed {
			r.take(step{gap: "the log's history is lost"})
		}
		r.resumed, r.replay = true, true
	}
	steps := 0
	for i := range b.Records {
		rec := &b.Records[i]
		if rec.Watermark != "" {
			r.upper = client.Revision{Epoch: rec.Epoch, RV: rec.Watermark}
		}
		if rec.Kind != delta.KindDelta || rec.Type == delta.Bookmark {
			continue
		}
		s := stepOf(rec)
		if r.replay { // a state is read for another reason
			s.trace = ""
		}
		r.take(s)
		steps++
	}
	for _, u := range b.Unreadable {
		if u.Key != "" { // nobody can tell who owns it
			r.take(step{change: &Change{Object: client.Object{Key: string(u.Key), Quarantined: true}}, owned: &owned{unsure: true}})
			steps++
		}
	}
	whole := r.replay && b.Replayed
	r.replay = r.replay && !b.Replayed
	if r.replay || !whole && steps == 0 && time.Since(r.told) < quietPosition {
		return nil
	}
	r.told = time.Now()
	r.take(step{upper: r.upper, position: formatLogPosition(at), whole: whole})
	return nil
}

// stepOf is what a record says.
func stepOf(r *delta.Record) step {
	at := client.Revision{Epoch: r.Epoch, RV: r.RV}
	return step{
		change: &Change{Object: client.Object{Key: string(r.Key), UID: r.UID, ResourceVersion: r.RV}, Deleted: r.Type == delta.Deleted},
		at:     at, upper: at, folded: true, owned: &owned{by: r.Owners, unsure: r.Overflow}, trace: r.Trace,
	}
}

// owned is who owns an object and who did, as a log says.
type owned struct {
	by     []delta.Owner
	unsure bool // there are more
}

// loggedOwners are the keys that own an object or did.
func (w *watched) loggedOwners(key string, o *owned) (keys []string) {
	for _, by := range o.by {
		if w.ownedBy.isKind(by.Kind) {
			keys = append(keys, w.ownedBy.key(key, by.Name))
		}
	}
	return keys
}

// logFormat is a place of a log: epoch, sequence, term and the times of the log.
const logFormat = "log.%d.%d.%d.%d.%d"

func formatLogPosition(p deltalog.Position) position {
	return position(fmt.Sprintf(logFormat, p.Epoch, p.Sequence, p.Term, nanoseconds(p.Created), nanoseconds(p.Fresh)))
}

// nanoseconds is a time since 1970, or 0 for the zero time.
func nanoseconds(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano()) //nolint:gosec // read back as it is
}

func timeOf(nanoseconds uint64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(nanoseconds)) //nolint:gosec // as it was written
}

func parseLogPosition(text position) (p deltalog.Position, err error) {
	if text == "" {
		return p, nil
	}
	var created, fresh uint64
	_, err = fmt.Sscanf(string(text), logFormat, &p.Epoch, &p.Sequence, &p.Term, &created, &fresh)
	p.Created, p.Fresh = timeOf(created), timeOf(fresh)
	if err != nil || formatLogPosition(p) != text {
		return deltalog.Position{}, fmt.Errorf("%w: %q", client.ErrPosition, text)
	}
	return p, nil
}
