package queue

import (
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/expectations"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

const (
	maxName     = 253
	maxItems    = 1000
	maxSession  = 253
	maxTrace    = 128
	maxMarks    = 16 // in one request
	maxWait     = time.Minute
	maxCredit   = 10_000
	maxQueues   = 100
	maxResume   = 10_000
	maxPage     = 1000
	defaultPage = 100
	// maxAssignBytes is about what the keys, states, barriers and expectations of one
	// answer may take, well below the 4 MiB that stock clients accept.
	maxAssignBytes = 1 << 20
)

// checks collects what is wrong with a request.
type checks struct{ errs []error }

func (c *checks) add(field, format string, args ...any) {
	c.errs = append(c.errs, rpc.InvalidArgument(field, fmt.Sprintf(format, args...)))
}

func (c *checks) err() error { return errors.Join(c.errs...) }

func (c *checks) queue(field, name string) {
	if err := checkName(name); err != nil {
		c.add(field, "%v", err)
	}
}

func (c *checks) key(field, key string) {
	switch {
	case key == "":
		c.add(field, "empty")
	case len(key) > workqueue.MaxKeyLen:
		c.add(field, "%d bytes, at most %d", len(key), workqueue.MaxKeyLen)
	case !utf8.ValidString(key):
		c.add(field, "not valid UTF-8")
	}
}

func (c *checks) session(field, id string, required bool) {
	switch {
	case id == "" && required:
		c.add(field, "empty")
	case len(id) > maxSession:
		c.add(field, "%d bytes, at most %d", len(id), maxSession)
	case !utf8.ValidString(id):
		c.add(field, "not valid UTF-8")
	}
}

func (c *checks) token(field string, token uint64) {
	if token == 0 || token > 1<<53 {
		c.add(field, "%d was never given", token)
	}
}

func (c *checks) count(field string, n, least, most int) bool {
	if n < least || n > most {
		c.add(field, "%d, must be %d to %d", n, least, most)
		return false
	}
	return true
}

// duration reads a duration of at least zero and at most limit.
func (c *checks) duration(field string, d *durationpb.Duration, limit time.Duration) time.Duration {
	if d == nil {
		return 0
	}
	if err := d.CheckValid(); err != nil {
		c.add(field, "not a duration")
		return 0
	}
	v := d.AsDuration()
	switch {
	case v < 0:
		c.add(field, "%v is negative", v)
	case v > limit:
		c.add(field, "%v is above %v", v, limit)
	}
	return v
}

// wholeMicros is a delay in the store's unit, rounded up: nothing runs early.
func wholeMicros(d time.Duration) int64 { return (d + time.Microsecond - 1).Microseconds() }

// lease reads a lease time: zero, or 1 s to 1 h.
func (c *checks) lease(field string, d *durationpb.Duration) int64 {
	v := c.duration(field, d, time.Hour)
	if v > 0 && v < time.Second {
		c.add(field, "%v is below 1s", v)
	}
	return v.Microseconds()
}

func (c *checks) level(field string, p int32) uint8 {
	if p < workqueue.MinPriority || p > workqueue.MaxPriority {
		c.add(field, "%d, must be %d to %d", p, workqueue.MinPriority, workqueue.MaxPriority)
	}
	return workqueue.Level(int(p))
}

func (c *checks) barrier(field string, in []*deltav1.CollectionRevision) workqueue.Barrier {
	if len(in) == 0 {
		return nil
	}
	if len(in) > maxMarks {
		c.add(field, "%d collections, at most %d", len(in), maxMarks)
		return nil
	}
	marks := make([]workqueue.Mark, 0, len(in))
	for i, m := range in {
		at := field + "[" + strconv.Itoa(i) + "]"
		if _, err := delta.ParseCollection(m.GetCollection()); err != nil {
			c.add(at+".collection", "%v", err)
		}
		if len(m.GetCollection()) > 1024 || !utf8.ValidString(m.GetCollection()) || !spaceless(m.GetCollection()) {
			c.add(at+".collection", "too long, or holds a space or invalid UTF-8")
		}
		rv, err := delta.ParseRV(m.GetRevision().GetResourceVersion())
		if err != nil {
			c.add(at+".revision.resource_version", "%v", err)
		}
		marks = append(marks, workqueue.Mark{Collection: m.GetCollection(), Epoch: m.GetRevision().GetEpoch(), RV: rv})
	}
	return workqueue.NewBarrier(marks...)
}

// spaceless says that the engine's "collection epoch rv" lines stay readable.
func spaceless(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

func (c *checks) trace(field, s string) {
	if len(s) > maxTrace || !spaceless(s) || !utf8.ValidString(s) {
		c.add(field, "not a traceparent")
	}
}

func (c *checks) names(field string, names []string) {
	if err := expectations.Check(field, names); err != nil {
		c.add(field, "%v", err)
	}
}

func (c *checks) owner(field, uid string, required bool) {
	switch {
	case uid == "" && required:
		c.add(field, "empty")
	case len(uid) > expectations.MaxNameLen || !spaceless(uid) || !utf8.ValidString(uid):
		c.add(field, "too long, or holds a space or invalid UTF-8")
	}
}

func (c *checks) refs(field string, refs []*queuev1.LeaseRef) {
	c.count(field, len(refs), 0, maxResume)
	for i, r := range refs {
		at := field + "[" + strconv.Itoa(i) + "]"
		c.queue(at+".queue", r.GetQueue())
		c.key(at+".key", r.GetKey())
		c.token(at+".token", r.GetToken())
	}
}

// checkName says what is wrong with the name of a queue.
func checkName(name string) error {
	ok := name != "" && len(name) <= maxName
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_' || c == '/'
	}
	if !ok {
		return fmt.Errorf("name %.64q is not 1 to %d of letters, digits, '.', '-', '_' and '/'", name, maxName)
	}
	return nil
}

// eachKey is an operation on each key of a request, checked.
func eachKey(queue string, keys []string, kind workqueue.OpKind) ([]workqueue.Op, error) {
	c := &checks{}
	c.queue("queue", queue)
	c.count("keys", len(keys), 1, maxItems)
	ops := make([]workqueue.Op, min(len(keys), maxItems))
	for i := range ops {
		c.key("keys["+strconv.Itoa(i)+"]", keys[i])
		ops[i] = workqueue.Op{Kind: kind, Key: keys[i]}
	}
	return ops, c.err()
}
