package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// version is that of the file's form; a build reads no later one.
const version = 1

// line is one line of a file, which is JSON with one of the fields set. The first is a header and
// the last an end; a key is of the queue before it.
type line struct {
	Header     *header         `json:"backup,omitempty"`
	Reflection json.RawMessage `json:"reflection,omitempty"` // a ReflectionSpec
	Index      json.RawMessage `json:"index,omitempty"`      // an Indexer
	Queue      json.RawMessage `json:"queue,omitempty"`      // a QueueStatus
	Key        json.RawMessage `json:"key,omitempty"`        // an Item
	End        *end            `json:"end,omitempty"`
}

type header struct {
	Version int       `json:"version"`
	MadeAt  time.Time `json:"made_at"`
	Build   string    `json:"build,omitempty"`
}

type end struct {
	Records int    `json:"records"` // lines between the first and this one
	SHA256  string `json:"sha256"`  // of all bytes before this line
}

// writer writes a file.
type writer struct {
	out *bufio.Writer
	sum hash.Hash
	n   int
}

func newWriter(w io.Writer, h header) (*writer, error) {
	out := &writer{out: bufio.NewWriter(w), sum: sha256.New()}
	return out, out.line(line{Header: &h})
}

func (w *writer) line(l line) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	w.sum.Write(text)
	_, err = w.out.Write(text)
	return err
}

// record writes a message in the field that set fills.
func (w *writer) record(m proto.Message, set func(*line, json.RawMessage)) error {
	text, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	var l line
	set(&l, text)
	w.n++
	return w.line(l)
}

func (w *writer) close() error {
	if err := w.line(line{End: &end{Records: w.n, SHA256: hex.EncodeToString(w.sum.Sum(nil))}}); err != nil {
		return err
	}
	return w.out.Flush()
}

// handler takes in the records of a file, in order.
type handler struct {
	reflection func(*reflectorv1.ReflectionSpec) error
	index      func(*indexv1.Indexer) error
	queue      func(*queuev1.QueueStatus) error
	key        func(*queuev1.Item) error
}

// maxLine bounds a line: a key has a few kilobytes of state, a barrier and some names.
const maxLine = 16 << 20

// read reads a file whole and gives each record to h. Every error names its line.
func read(path string, h handler) (header, error) {
	file, err := os.Open(path) //nolint:gosec // the user's own
	if err != nil {
		return header{}, err
	}
	defer file.Close()
	var head *header
	sum, n, at := sha256.New(), 0, 0
	queued := false
	in := bufio.NewScanner(file)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		at++
		fail := func(err error) (header, error) { return header{}, fmt.Errorf("%s, line %d: %w", path, at, err) }
		var l line
		d := json.NewDecoder(bytes.NewReader(in.Bytes()))
		d.DisallowUnknownFields()
		err := d.Decode(&l)
		switch {
		case head == nil && (err != nil || l.Header == nil):
			return fail(errors.New("this is no backup of deltaplane"))
		case err != nil:
			return fail(err)
		case l.Header != nil && head != nil:
			return fail(errors.New("a second backup begins"))
		case l.Header != nil && l.Header.Version != version:
			return fail(fmt.Errorf("the backup has version %d, and this build reads version %d", l.Header.Version, version))
		case l.Header != nil:
			head = l.Header
		case l.End != nil:
			if l.End.Records != n {
				return fail(fmt.Errorf("the backup has %d records, and %d were written", n, l.End.Records))
			}
			if got := hex.EncodeToString(sum.Sum(nil)); got != l.End.SHA256 {
				return fail(fmt.Errorf("the backup was changed: its SHA-256 is %s, and %s was written", got, l.End.SHA256))
			}
			if in.Scan() {
				return fail(errors.New("something follows the end"))
			}
			return *head, nil
		case l.Key != nil && !queued:
			return fail(errors.New("a key before any queue"))
		default:
			queued = queued || l.Queue != nil
			n++
			if err := h.take(&l); err != nil {
				return fail(err)
			}
		}
		sum.Write(in.Bytes())
		sum.Write([]byte{'\n'})
	}
	if err := in.Err(); err != nil {
		return header{}, fmt.Errorf("%s, line %d: %w", path, at+1, err)
	}
	return header{}, fmt.Errorf("%s: the backup is cut off after line %d: it has no end", path, at)
}

func (h *handler) take(l *line) error {
	switch {
	case l.Reflection != nil:
		return take(l.Reflection, &reflectorv1.ReflectionSpec{}, h.reflection)
	case l.Index != nil:
		return take(l.Index, &indexv1.Indexer{}, h.index)
	case l.Queue != nil:
		return take(l.Queue, &queuev1.QueueStatus{}, h.queue)
	case l.Key != nil:
		return take(l.Key, &queuev1.Item{}, h.key)
	}
	return errors.New("a record of no known kind")
}

func take[M proto.Message](raw json.RawMessage, m M, f func(M) error) error {
	if err := protojson.Unmarshal(raw, m); err != nil {
		return err
	}
	if f == nil {
		return nil
	}
	return f(m)
}
