package memory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/journal"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// graceAfterStart is how long workers have to reconnect before the leases they
// held when the process ended go to others, in microseconds.
const graceAfterStart = 2e6

// restore reads every log of the directory and rewrites each, beginning with a
// snapshot.
func (e *Engine) restore() error {
	entries, err := os.ReadDir(e.cfg.Dir)
	if err != nil {
		return err
	}
	for _, ent := range entries {
		escaped, ok := strings.CutSuffix(ent.Name(), logSuffix)
		if !ok {
			continue
		}
		path := filepath.Join(e.cfg.Dir, ent.Name())
		name, err := nameOf(escaped, path)
		if err == nil {
			err = e.reopen(name, path)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", ent.Name(), err)
		}
	}
	return nil
}

func (e *Engine) reopen(name, path string) error {
	ms, end, err := replay(path)
	if err != nil {
		return err
	}
	if err := e.cutOrKeep(name, path, end); err != nil {
		return err
	}
	q := &queue{e: e, name: name}
	for _, m := range ms { // the machine's clock may have been set back meanwhile
		e.ahead = max(e.ahead, m.Last()-e.cfg.Now().UnixMicro())
	}
	for _, m := range ms {
		q.used.Store(max(q.used.Load(), m.Last()))
		m.EndLeases(e.now() + graceAfterStart)
		q.add(m)
	}
	if q.used.Load() == 0 { // it had no transaction
		q.used.Store(e.now())
	}
	if err := q.create(); err != nil {
		return err
	}
	e.queues[name] = q
	return nil
}

// cutOrKeep looks at where reading a log ended: what a crash tore off is cut,
// and a damaged log is kept aside.
func (e *Engine) cutOrKeep(name, path string, end journal.End) error {
	if end.At == end.Size {
		return nil
	}
	attrs := []any{slog.String(telemetry.KeyQueue, name), slog.Int64(telemetry.KeySequence, end.At), slog.Int64(telemetry.KeyBytes, end.Size-end.At)}
	if !end.Damaged {
		e.cfg.Log.Info("queue log cut: a crash tore its last record", attrs...)
		return nil
	}
	aside := fmt.Sprintf("%s.damaged-%d", path, e.cfg.Now().UnixMicro())
	if err := os.Link(path, aside); err != nil {
		return fmt.Errorf("%w, and it cannot be kept aside: %w", end.Err(), err)
	}
	e.cfg.Log.Error("queue log damaged, kept aside: what follows the damage is not served", append(attrs, slog.String(telemetry.KeyPath, aside))...)
	return nil
}

var errNoSnapshot = fmt.Errorf("no whole snapshot at the start of the log; move the file away to start over: %w", fs.ErrInvalid)

// replay rebuilds the partitions of a queue from its log.
func replay(path string) ([]*workqueue.Machine, journal.End, error) {
	var b builder
	end, err := journal.Read(path, format, func(body []byte) error { return b.take(body[0], body[1:]) })
	switch {
	case errors.Is(err, journal.ErrFormat):
		return nil, end, fmt.Errorf("%w: %w", errNoSnapshot, err)
	case err != nil:
		return nil, end, err
	case !b.whole:
		return nil, end, errNoSnapshot
	}
	return b.ms, end, nil
}

// builder makes partitions of the records of a log.
type builder struct {
	parts []*workqueue.Restorer // those that have begun
	ms    []*workqueue.Machine  // of those; nil while keys of the snapshot may follow
	whole bool                  // the snapshot is
}

// machine is a partition that has begun and whose keys are all there.
func (b *builder) machine(p int) *workqueue.Machine {
	if b.ms[p] == nil {
		b.ms[p] = b.parts[p].Done()
	}
	return b.ms[p]
}

func (b *builder) take(kind byte, body []byte) error {
	if b.whole && kind != recTransaction && kind != recConfig {
		return fmt.Errorf("record of kind %q behind the snapshot: %w", kind, errTransaction)
	}
	switch kind {
	case recHead:
		var s workqueue.Snapshot
		if len(body) == 0 || int(body[0]) != len(b.parts) || json.Unmarshal(body[1:], &s) != nil {
			return fmt.Errorf("head of partition %d: %w", len(b.parts), errTransaction)
		}
		b.parts, b.ms = append(b.parts, workqueue.NewRestorer(&s)), append(b.ms, nil)
	case recItems:
		p, items, err := decodeItems(body)
		if err != nil || p >= len(b.parts) || b.ms[p] != nil {
			return fmt.Errorf("keys of partition %d: %w", p, errTransaction)
		}
		b.parts[p].Add(items, nil)
	case recEntries:
		p, entries, err := decodeEntries(body)
		if err != nil || p >= len(b.parts) || b.ms[p] != nil {
			return fmt.Errorf("back-off ids of partition %d: %w", p, errTransaction)
		}
		b.parts[p].Add(nil, entries)
	case recWhole:
		for p := range b.parts {
			b.machine(p)
		}
		b.whole = len(b.parts) > 0
	case recConfig:
		var c configured
		if err := json.Unmarshal(body, &c); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		for p := range b.parts {
			b.machine(p).Configure(c.At, c.Config)
		}
	case recTransaction:
		p, now, t, err := decodeTransaction(body)
		switch {
		case err != nil || b.whole && p >= len(b.parts):
			return fmt.Errorf("transaction of partition %d: %w", p, errTransaction)
		case p < len(b.parts):
			b.machine(p).Apply(now, t)
		}
	default:
		return fmt.Errorf("record of unknown kind %q: %w", kind, errTransaction)
	}
	return nil
}
