package read

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// A machine that is suspended stops the monotonic clock, by which a reader of a quiet log would
// never have been away.
func TestAReaderThatWasSuspendedTellsByTheLogsClock(t *testing.T) {
	t.Parallel()
	c := &link.Conn{Config: link.Config{TombstoneTTL: time.Hour}.WithDefaults()}
	now := time.Now()
	tail := link.Tail{First: 1, Last: 9, Epoch: 1, Term: 1, Start: 2, Created: now.Add(-time.Hour), Now: now, Asked: now, Answered: now}
	at := delta.Position{Epoch: 1, Sequence: 9, Term: 1}
	for _, row := range []struct {
		name    string
		heard   time.Time // by the log's clock
		contact time.Time // by this process's
		want    error
	}{
		{"was here just now", now, now, nil},
		{"the log's clock says that it was away", now.Add(-31 * time.Minute), now, link.ErrBootstrap},
		{"the wall clock says that it was away", time.Time{}, now.Round(0).Add(-31 * time.Minute), link.ErrBootstrap},
		{"the log's clock is set otherwise", time.Time{}, now, nil},
	} {
		r := &reader{c: c, pos: at, heard: row.heard, contact: row.contact}
		if err := r.identify(tail); !errors.Is(err, row.want) {
			t.Errorf("%s: identify() = %v, want %v", row.name, err, row.want)
		}
	}
	r := &reader{c: c, pos: at, contact: now}
	tail.Now = now.Add(-5 * time.Hour)
	if err := r.identify(tail); err != nil || r.ahead.Round(time.Minute) != -5*time.Hour {
		t.Errorf("identify() = %v, the log is %v ahead; want -5h, and no refusal", err, r.ahead)
	}
}

// delivered is a record as a consumer is sent it.
type delivered struct {
	jetstream.Msg
	rec  delta.Record
	meta jetstream.MsgMetadata
}

func (d delivered) Subject() string                           { return d.rec.Subject() }
func (d delivered) Headers() nats.Header                      { return d.rec.Header() }
func (d delivered) Data() []byte                              { return d.rec.Payload }
func (d delivered) Metadata() (*jetstream.MsgMetadata, error) { return &d.meta, nil }

// A reader that follows, or catches up from a position, may have missed a tombstone that has
// expired since. One that reads from the start has nothing that such a tombstone would take away.
func TestAReaderMoreThanHalfATombstonesTimeBehindStartsAgain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name               string
		old, ahead         time.Duration
		replaying, resumed bool
		want               error
	}{
		{"a moment behind", time.Second, 0, false, false, nil},
		{"nearly half", 29 * time.Minute, 0, false, false, nil},
		{"more than half", 31 * time.Minute, 0, false, false, link.ErrBootstrap},
		{"more than half, by a log whose clock is ahead", 25 * time.Minute, 10 * time.Minute, false, false, link.ErrBootstrap},
		{"less, by a log whose clock is behind", 35 * time.Minute, -10 * time.Minute, false, false, nil},
		{"in a replay from the start", 31 * time.Minute, 0, true, false, nil},
		{"in a replay from a position", 31 * time.Minute, 0, true, true, link.ErrBootstrap},
	} {
		handled := 0
		r := &reader{
			c: &link.Conn{Config: link.Config{TombstoneTTL: time.Hour}.WithDefaults()}, contact: time.Now(), ahead: row.ahead, replaying: row.replaying, resumed: row.resumed, target: 9,
			term: 1, epoch: 1, handle: func(_ context.Context, b delta.Batch) error { handled += len(b.Records); return nil },
		}
		rec := update("a", 1, 1)
		meta := jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: 1, Consumer: 1}, Timestamp: time.Now().Add(-row.old)}
		err := r.process(t.Context(), t.Context(), []jetstream.Msg{delivered{rec: rec, meta: meta}})
		if !errors.Is(err, row.want) || handled != 1 && row.want == nil || handled != 0 && row.want != nil {
			t.Errorf("%s: process() = %v, %d handled, want %v", row.name, err, handled, row.want)
		}
	}
}

func TestTheFirstRefusalIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	var p retry
	for i, want := range []time.Duration{0, minBackoff, 2 * minBackoff, 4 * minBackoff} {
		if got := p.next(true); got != want {
			t.Errorf("refusal %d: %v, want %v", i, got, want)
		}
	}
	for range 100 {
		p.next(false)
	}
	if got := p.next(false); got != maxBackoff {
		t.Errorf("after many failures: %v, want %v", got, maxBackoff)
	}
}

func TestReadersThatLoseTheirPlaceAtOnceBeginAgainApart(t *testing.T) {
	t.Parallel()
	var early, late int
	for range 200 {
		switch d := jitter(0); {
		case d < 0 || d >= replaySpread:
			t.Fatalf("a wait of %v, want less than %v", d, replaySpread)
		case d < replaySpread/2:
			early++
		default:
			late++
		}
		if d := jitter(time.Second); d < time.Second || d >= 2*time.Second {
			t.Fatalf("a wait of %v after a failure, want one to two seconds", d)
		}
	}
	if early < 20 || late < 20 {
		t.Errorf("%d early, %d late: they begin together", early, late)
	}
}
