package memory

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// graceAfterStart is how long workers have to reconnect before the leases they
// held when the process ended go to others, in microseconds.
const graceAfterStart = 2e6

// restore reads every log of the directory and starts each anew with a
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
	if q.used.Load() == 0 { // it had no turn
		q.used.Store(e.now())
	}
	if err := q.create(); err != nil {
		return err
	}
	e.queues[name] = q
	return nil
}

// cutOrKeep looks at what lies behind the records that could be read: no whole
// record is what a crash tore off; another one means damage, and the log is
// kept aside.
func (e *Engine) cutOrKeep(name, path string, end int64) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() == end {
		return err
	}
	attrs := []any{slog.String(telemetry.KeyQueue, name), slog.Int64(telemetry.KeySequence, end), slog.Int64(telemetry.KeyBytes, info.Size()-end)}
	found, err := recordAfter(path, end+1)
	if err != nil {
		return err
	}
	if !found {
		e.cfg.Log.Info("queue log cut: a crash tore its last record", attrs...)
		return nil
	}
	aside := fmt.Sprintf("%s.damaged-%d", path, e.cfg.Now().UnixMicro())
	if err := os.Link(path, aside); err != nil {
		return fmt.Errorf("damaged at byte %d, and it cannot be kept aside: %w", end, err)
	}
	e.cfg.Log.Error("queue log damaged, kept aside: what follows the damage is not served", append(attrs, slog.String(telemetry.KeyPath, aside))...)
	return nil
}

var (
	errBad        = errors.New("no whole record")
	errNoSnapshot = fmt.Errorf("no whole snapshot at the start of the log; move the file away to begin anew: %w", fs.ErrInvalid)
)

// replay rebuilds the partitions of a queue from its log, and tells where the
// last record ends that could be read.
func replay(path string) ([]*workqueue.Machine, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	in := &io.LimitedReader{R: bufio.NewReaderSize(f, 1<<20), N: info.Size()}
	var b builder
	end := int64(0)
	for {
		kind, body, err := readRecord(in)
		if errors.Is(err, errBad) {
			break
		}
		if err == nil {
			err = b.take(kind, body)
		}
		if err != nil {
			return nil, 0, err
		}
		end = info.Size() - in.N
	}
	if b.ms == nil {
		return nil, 0, errNoSnapshot
	}
	return b.ms, end, nil
}

// builder makes partitions of the records of a log.
type builder struct {
	parts []*workqueue.Restorer
	ms    []*workqueue.Machine // after the snapshot
}

func (b *builder) take(kind byte, body []byte) error {
	switch {
	case b.ms == nil && kind == recTurn, b.ms == nil && kind == recConfig:
		return errNoSnapshot
	case b.ms != nil && kind != recTurn && kind != recConfig:
		return fmt.Errorf("record of kind %q behind the snapshot: %w", kind, errTurn)
	}
	switch kind {
	case recHead:
		var s workqueue.Snapshot
		if len(body) == 0 || int(body[0]) != len(b.parts) || json.Unmarshal(body[1:], &s) != nil {
			return fmt.Errorf("head of partition %d: %w", len(b.parts), errTurn)
		}
		b.parts = append(b.parts, workqueue.NewRestorer(&s))
	case recItems:
		p, items, err := decodeItems(body)
		if err != nil || p >= len(b.parts) {
			return fmt.Errorf("keys of partition %d: %w", p, errTurn)
		}
		b.parts[p].Add(items, nil)
	case recEntries:
		p, entries, err := decodeEntries(body)
		if err != nil || p >= len(b.parts) {
			return fmt.Errorf("back-off ids of partition %d: %w", p, errTurn)
		}
		b.parts[p].Add(nil, entries)
	case recWhole:
		for _, p := range b.parts {
			b.ms = append(b.ms, p.Done())
		}
	case recConfig:
		var c configured
		if err := json.Unmarshal(body, &c); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		for _, m := range b.ms {
			m.Configure(c.At, c.Config)
		}
	case recTurn:
		p, now, t, err := decodeTurn(body)
		if err != nil || p >= len(b.ms) {
			return fmt.Errorf("turn of partition %d: %w", p, errTurn)
		}
		b.ms[p].Turn(now, t)
	default:
		return fmt.Errorf("record of unknown kind %q: %w", kind, errTurn)
	}
	return nil
}

// readRecord reads one record, or errBad where none is whole.
func readRecord(in *io.LimitedReader) (byte, []byte, error) {
	var head [headLen]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return 0, nil, ended(err)
	}
	n := length(head[:])
	if n == 0 || n > in.N {
		return 0, nil, errBad
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(in, body); err != nil {
		return 0, nil, ended(err)
	}
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(head[len(mark)+4:]) {
		return 0, nil, errBad
	}
	return body[0], body[1:], nil
}

// length is the length in a record's head, zero when it is none.
func length(head []byte) int64 {
	n := binary.LittleEndian.Uint32(head[len(mark):])
	if string(head[:len(mark)]) != mark || n > maxRecord {
		return 0
	}
	return int64(n)
}

func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errBad
	}
	return err
}

// recordAfter says whether a whole record begins at or behind an offset.
func recordAfter(path string, from int64) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	buf := make([]byte, 1<<20)
	for from+int64(headLen) <= info.Size() {
		n, err := f.ReadAt(buf, from)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		for at := 0; ; at++ {
			i := bytes.Index(buf[at:n], []byte(mark))
			if i < 0 {
				break
			}
			at += i
			off := from + int64(at)
			_, _, err := readRecord(&io.LimitedReader{R: io.NewSectionReader(f, off, info.Size()-off), N: info.Size() - off})
			if err == nil || !errors.Is(err, errBad) {
				return err == nil, err
			}
		}
		if n < len(buf) {
			break
		}
		from += int64(n - len(mark) + 1)
	}
	return false, nil
}
