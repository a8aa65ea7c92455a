package memory

import (
	"encoding/json"
	"path/filepath"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/journal"
)

// The log of a queue is a journal whose records have a kind in front. It begins
// with a snapshot: for each partition recHead and what it holds, and behind the
// last recWhole. Transactions and configurations may stand between the partitions, and
// follow: a partition that has not begun yet holds what they changed.
const (
	format journal.Format = "\xd1Dq2"

	recHead        = 'h' // partition, JSON of head
	recItems       = 'i' // partition, items
	recEntries     = 'e' // partition, back-off entries
	recWhole       = 'w' // the snapshot ends
	recConfig      = 'c' // JSON of configured
	recTransaction = 't' // partition, time, transaction

	logSuffix = ".queue"
)

// record is a record of a kind, for a journal.
func record(kind byte, body func([]byte) []byte) func([]byte) []byte {
	return func(b []byte) []byte { return body(append(b, kind)) }
}

func (q *queue) path() string { return filepath.Join(q.e.cfg.Dir, fileName(q.name)+logSuffix) }

// configured is a change of the configuration, in microseconds.
type configured struct {
	At int64 `json:"at"`
	workqueue.Config
}

// logConfig logs a new configuration. It needs the locks of all partitions.
func (q *queue) logConfig(at int64, cfg workqueue.Config) error {
	blob, err := json.Marshal(configured{at, cfg})
	if err != nil {
		return err
	}
	place, err := q.log.Append(record(recConfig, func(b []byte) []byte { return append(b, blob...) }))
	if err != nil {
		return q.unavailable(err)
	}
	if !q.fsync.Load() && cfg.Durability != workqueue.Fsync {
		return nil
	}
	if err := q.log.Sync(place); err != nil {
		return q.unknown(err)
	}
	return nil
}
