package history

import (
	"strconv"
	"strings"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// The text of an event is its cause or its reason, and behind that the changes that an add is for
// or the objects that a settlement wrote, each a record of fields.
const (
	record = "\x1e"
	field  = "\x1f"
)

// causes is the text of an add. It is valid until the next text is made.
func (h *Recent) causes(op *workqueue.Op) []byte {
	h.scratch = append(h.scratch[:0], op.Trace...)
	if op.More == nil {
		return h.scratch
	}
	for _, m := range op.More.Barrier {
		from := len(h.scratch)
		h.scratch = append(append(append(h.scratch, record...), m.Collection...), field...)
		h.scratch = strconv.AppendUint(h.scratch, m.Epoch, 36)
		h.fits(from, field, m.RV)
	}
	return h.scratch
}

// outcome is the text of a settlement. It is valid until the next text is made.
func (h *Recent) outcome(op *workqueue.Op) []byte {
	if op.More == nil {
		return nil
	}
	h.scratch = append(h.scratch[:0], op.More.Reason...)
	for i := range op.More.Writes {
		w := &op.More.Writes[i]
		from := len(h.scratch)
		h.scratch = append(append(append(h.scratch, record...), w.Verb...), field...)
		h.scratch = append(append(append(h.scratch, w.Collection...), field...), w.Key...)
		h.fits(from, field, w.RV)
	}
	return h.scratch
}

// fits ends the record that begins at from, and takes it off where it is too long.
func (h *Recent) fits(from int, last ...string) {
	for _, part := range last {
		h.scratch = append(h.scratch, part...)
	}
	if len(h.scratch) > longestText {
		h.scratch = h.scratch[:from]
	}
}

// split is the first part of a text, and the fields of the records behind it.
func split(text string) (first string, records [][]string) {
	first, rest, some := strings.Cut(text, record)
	for some {
		var r string
		r, rest, some = strings.Cut(rest, record)
		records = append(records, strings.Split(r, field))
	}
	return first, records
}

// barrierOf are the changes that an add is for.
func barrierOf(records [][]string) (out workqueue.Barrier) {
	for _, r := range records {
		if len(r) != 3 {
			continue
		}
		if epoch, err := strconv.ParseUint(r[1], 36, 64); err == nil {
			out = append(out, workqueue.Mark{Collection: r[0], Epoch: epoch, RV: r[2]})
		}
	}
	return out
}

// writesOf are what a settlement wrote.
func writesOf(records [][]string) (out []workqueue.Write) {
	for _, r := range records {
		if len(r) == 4 {
			out = append(out, workqueue.Write{Verb: r[0], Collection: r[1], Key: r[2], RV: r[3]})
		}
	}
	return out
}
