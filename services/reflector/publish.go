package reflector

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

// publisher moves what is staged to the log.
type publisher struct {
	r     *reflection
	name  string // of the collection
	w     *stream.Writer
	lease *stream.Lease
	wake  chan struct{} // cap 1

	mu    sync.Mutex
	stage *delta.Stage // guarded by mu
	// heard is when the source last spoke, open whether a watch is open; guarded by mu.
	heard time.Time
	open  bool
	// asked: a list was asked for, because the stage had no room for some changes, and none was
	// complete since; guarded by mu.
	asked bool
	// lists are the complete lists whose synced records wait, oldest first: whether each left keys
	// unresolved; guarded by mu.
	lists []bool
	// key encrypts what is published; another one makes a list due. It is run's alone.
	key string
	// sending is how many records are with the writer, sent when the oldest change among them was
	// observed; guarded by mu.
	sending int
	sent    time.Time
	// source is to be said by the log: which cluster it is of. Guarded by mu.
	source string
	// later wakes the publisher for what is in no hurry; nil while nothing is. Guarded by mu.
	later *time.Timer
}

// newPublisher writes behind what w has written, of which l says what lives, and where everything
// up to from was told.
func newPublisher(r *reflection, w *stream.Writer, lease *stream.Lease, from delta.RV, l *handoverState) *publisher {
	stage := delta.NewStage(r.cfg.StageBytes, from)
	stage.Count(l.shadow.Len())
	if !l.unread { // else others may have read what this process could not
		stage.Digest(l.shadow.Digest())
	}
	return &publisher{r: r, name: r.col.String(), w: w, lease: lease, wake: make(chan struct{}, 1), stage: stage, key: r.log.Key(r.col)}
}

// add changes the stage and wakes the publisher; it never waits for the log.
func (p *publisher) add(fn func(*delta.Stage)) {
	p.mu.Lock()
	fn(p.stage)
	p.heard = time.Now()
	p.mu.Unlock()
	p.count()
	p.signal()
}

// laterAfter is how long the log may not tell what is in no hurry.
const laterAfter = 100 * time.Millisecond

// addLater is add for a watermark that nobody waits for: many of its moves become one record.
func (p *publisher) addLater(fn func(*delta.Stage)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn(p.stage)
	p.heard = time.Now()
	if p.later == nil {
		p.later = time.AfterFunc(laterAfter, func() {
			p.mu.Lock()
			p.later = nil
			p.mu.Unlock()
			p.signal()
		})
	}
}

// identify has the log say which cluster it is of, before the next liveness record.
func (p *publisher) identify(source string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.source = source
}

func (p *publisher) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// count tells what waits, also while the log stands still.
func (p *publisher) count() {
	p.mu.Lock()
	defer p.mu.Unlock() // else an earlier count may replace a later one
	pending, coalesced, dropped := p.stage.Len()+p.sending, p.stage.Coalesced(), p.stage.Overflowed()
	since := p.sent
	if since.IsZero() {
		since = p.stage.Oldest()
	}
	p.r.state.set(func(v *view) {
		v.pending, v.coalesced, v.dropped, v.waitingSince = pending, coalesced, dropped, since
	})
}

func (p *publisher) watching(open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = open
	if open {
		p.heard = time.Now()
	}
}

// bytes is what waits.
func (p *publisher) bytes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stage.Bytes()
}

const (
	popRecords = 512
	popBytes   = 4 << 20
)

func (p *publisher) run(ctx context.Context) error {
	return pace{wake: p.wake, gather: p.r.cfg.Gather, live: p.r.cfg.LivenessEvery, drain: p.drain, full: p.full, beat: func(ctx context.Context) error {
		if key := p.r.log.Key(p.r.col); key != p.key { // it is to encrypt what the log holds already
			p.key = key
			p.r.retryNow()
		}
		return p.beat(ctx)
	}}.run(ctx)
}

// full reports whether what waits gains nothing by more, or delays others: it makes a full batch,
// a list may wait for its room, or readers for the end of a list.
func (p *publisher) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stage.Len() >= popRecords || p.stage.Bytes() >= min(popBytes, p.r.cfg.StageBytes/2) || len(p.lists) > 0
}

// drain publishes until nothing waits, and returns how many changes that were. What comes meanwhile
// is left to be gathered, where that is asked for. All that was published is acknowledged then.
func (p *publisher) drain(ctx context.Context) (changes int, err error) {
	for due := p.waiting(); ; {
		p.mu.Lock()
		oldest, heard := p.stage.Oldest(), p.heard
		records := p.stage.Pop(popRecords, popBytes)
		p.mu.Unlock()
		if len(records) == 0 {
			return changes, nil
		}
		if err := p.publish(ctx, records, heard, oldest); err != nil {
			return changes, err
		}
		changes += deltas(records)
		due -= len(records)
		p.repair()
		if p.r.cfg.Gather > 0 && changes > 0 && due <= 0 && !p.full() {
			return changes, p.w.Flush(ctx)
		}
	}
}

// deltas is how many of the records are changes.
func deltas(records []delta.Record) (n int) {
	for i := range records {
		if records[i].Kind == delta.KindDelta {
			n++
		}
	}
	return n
}

// repair asks for a list when changes found no room, once the log moves again and there is some.
func (p *publisher) repair() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.stage.Refused():
		p.asked = false
	case !p.asked && p.stage.Bytes() <= p.r.cfg.StageBytes/2:
		p.asked = true
		p.r.retryNow()
	}
}

// publish appends a batch whose oldest change was observed then, zero where it has none. Records of
// events that are traced carry the context.
func (p *publisher) publish(ctx context.Context, records []delta.Record, heard, oldest time.Time) (err error) {
	spans := p.r.tracer.begin(ctx, p.name, records, time.Now())
	defer func() { endTraces(spans, len(records), err) }()
	synced := 0
	for i := range records {
		if records[i].Kind == delta.KindSynced {
			synced++
		}
	}
	p.mu.Lock()
	p.sending, p.sent = len(records), oldest
	p.mu.Unlock()
	p.count()
	p.r.state.set(func(v *view) { v.sourceAt = heard })
	err = p.lease.Hold(ctx)
	if err == nil {
		err = p.w.Append(ctx, records)
	}
	if err == nil && (synced > 0 || p.idle()) {
		err = p.w.Flush(ctx)
	}
	if err == nil && synced > 0 {
		complete, due := p.told(synced)
		if complete {
			p.lease.Completed()
		}
		p.lease.Owe(due)
	}
	if err != nil {
		return err
	}
	p.acknowledged(records, oldest, spans)
	return nil
}

// told takes note that the log has the synced records of so many lists. It returns whether the last
// of them was complete without a doubt, and whether a list is due, no matter which replica leads:
// after it, or after one that still waits.
func (p *publisher) told(synced int) (complete, due bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	complete = !p.lists[synced-1]
	due = slices.Contains(p.lists[synced-1:], true)
	p.lists = slices.Clone(p.lists[synced:])
	return complete, due
}

// acknowledged reports what has been published. Appends of a busy stage are counted when they are
// on their way: the writer sends them until they are acknowledged.
func (p *publisher) acknowledged(records []delta.Record, oldest time.Time, spans []traced) {
	p.lease.Report(p.w.Epoch(), p.w.Acked())
	name, now := p.r.label(), time.Now()
	seconds := p.r.metrics.publishSeconds.WithLabelValues(name)
	kinds := map[delta.Kind]int{}
	for i := range records {
		kinds[records[i].Kind]++
		var of trace.SpanContext
		if len(spans) > 0 && spans[0].at == i {
			of, spans = spans[0].publish.SpanContext(), spans[1:]
		}
		if at := records[i].ObservedAt; records[i].Kind == delta.KindDelta && !at.IsZero() {
			tracing.Observe(seconds, now.Sub(at).Seconds(), of)
		}
	}
	for kind, n := range kinds {
		p.r.metrics.published.WithLabelValues(name, kind.String()).Add(float64(n))
	}
	var lag time.Duration
	if !oldest.IsZero() {
		lag = now.Sub(oldest)
	}
	last := records[len(records)-1].Watermark
	p.mu.Lock()
	p.sending, p.sent = 0, time.Time{}
	p.mu.Unlock()
	p.count()
	p.r.state.set(func(v *view) {
		v.revision = delta.Revision{Epoch: p.w.Epoch(), RV: last}
		if lag > 0 {
			v.lag = lag
		}
		v.published += uint64(kinds[delta.KindDelta])
	})
}

func (p *publisher) waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stage.Len()
}

func (p *publisher) idle() bool { return p.waiting() == 0 }

// beat looks whether the log is whole, and writes a liveness record while a watch is open: it
// vouches that the log is current.
func (p *publisher) beat(ctx context.Context) error {
	if err := p.check(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	rec := p.r.describe(delta.Record{Kind: delta.KindLiveness, Writer: p.r.cfg.Holder, Watermark: p.stage.Watermark(), ObservedAt: p.heard})
	p.stage.Tell(&rec)
	open, heard, source := p.open, p.heard, p.source
	p.source = ""
	p.mu.Unlock()
	if source != "" {
		if err := p.w.Name(ctx, source); err != nil {
			return err
		}
	}
	if !open {
		return nil
	}
	return p.publish(ctx, []delta.Record{rec}, heard, time.Time{})
}

// check ends the term when somebody else took records from the log or changed its limits. An answer
// that does not come is found out by the next append. Whatever waits, the stage knows how many keys
// live in the log: what it handed out is acknowledged by now, as drain ends with that.
func (p *publisher) check(ctx context.Context) error {
	var log delta.Record
	p.mu.Lock()
	p.stage.Tell(&log)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.r.cfg.LivenessEvery)
	defer cancel()
	err := p.w.Check(ctx, log.Live)
	if errors.Is(err, stream.ErrLogLost) || errors.Is(err, stream.ErrForeign) || errors.Is(err, stream.ErrDeposed) {
		return err
	}
	return nil
}
