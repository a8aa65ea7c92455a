package wire

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

// What a request may hold at most.
const (
	MaxName     = 253
	MaxItems    = 1000
	maxSession  = 253
	maxTrace    = 128
	MaxMarks    = 16 // in one request
	MaxWait     = time.Minute
	MaxCredit   = 10_000
	MaxQueues   = 100
	maxResume   = 10_000
	MaxPage     = 1000
	DefaultPage = 100
	// MaxAssignBytes is about what the keys, states, barriers and expectations of one
	// answer may take, well below the 4 MiB that stock clients accept.
	MaxAssignBytes = 1 << 20
)

// Checks collects what is wrong with a request.
type Checks struct{ Errs []error }

// Add adds what is wrong with a field.
func (c *Checks) Add(field, format string, args ...any) {
	c.Errs = append(c.Errs, rpc.InvalidArgument(field, fmt.Sprintf(format, args...)))
}

// Err is everything that was found wrong, nil for nothing.
func (c *Checks) Err() error { return errors.Join(c.Errs...) }

// Queue checks the name of a queue.
func (c *Checks) Queue(field, name string) {
	if err := CheckName(name); err != nil {
		c.Add(field, "%v", err)
	}
}

// Key checks a key.
func (c *Checks) Key(field, key string) {
	switch {
	case key == "":
		c.Add(field, "empty")
	case len(key) > workqueue.MaxKeyLen:
		c.Add(field, "%d bytes, at most %d", len(key), workqueue.MaxKeyLen)
	case !utf8.ValidString(key):
		c.Add(field, "not valid UTF-8")
	}
}

// Session checks the id that a caller gave a session.
func (c *Checks) Session(field, id string, required bool) {
	switch {
	case id == "" && required:
		c.Add(field, "empty")
	case len(id) > maxSession:
		c.Add(field, "%d bytes, at most %d", len(id), maxSession)
	case !utf8.ValidString(id):
		c.Add(field, "not valid UTF-8")
	}
}

// Token checks the token of a lease.
func (c *Checks) Token(field string, token uint64) {
	if token == 0 || token > 1<<53 {
		c.Add(field, "%d was never given", token)
	}
}

// Count checks a number, and reports whether it is good.
func (c *Checks) Count(field string, n, least, most int) bool {
	if n < least || n > most {
		c.Add(field, "%d, must be %d to %d", n, least, most)
		return false
	}
	return true
}

// Duration reads a duration of at least zero and at most limit.
func (c *Checks) Duration(field string, d *durationpb.Duration, limit time.Duration) time.Duration {
	if d == nil {
		return 0
	}
	if err := d.CheckValid(); err != nil {
		c.Add(field, "not a duration")
		return 0
	}
	v := d.AsDuration()
	switch {
	case v < 0:
		c.Add(field, "%v is negative", v)
	case v > limit:
		c.Add(field, "%v is above %v", v, limit)
	}
	return v
}

// WholeMicros is a delay in the store's unit, rounded up: nothing runs early.
func WholeMicros(d time.Duration) int64 { return (d + time.Microsecond - 1).Microseconds() }

// Lease reads a lease time: zero, or 1 s to 1 h.
func (c *Checks) Lease(field string, d *durationpb.Duration) int64 {
	v := c.Duration(field, d, time.Hour)
	if v > 0 && v < time.Second {
		c.Add(field, "%v is below 1s", v)
	}
	return v.Microseconds()
}

// Level checks a priority and returns its level.
func (c *Checks) Level(field string, p int32) uint8 {
	if p < workqueue.MinPriority || p > workqueue.MaxPriority {
		c.Add(field, "%d, must be %d to %d", p, workqueue.MinPriority, workqueue.MaxPriority)
	}
	return workqueue.Level(int(p))
}

// Barrier reads a barrier.
func (c *Checks) Barrier(field string, in []*deltav1.CollectionRevision) workqueue.Barrier {
	if len(in) == 0 {
		return nil
	}
	if len(in) > MaxMarks {
		c.Add(field, "%d collections, at most %d", len(in), MaxMarks)
		return nil
	}
	marks := make([]workqueue.Mark, 0, len(in))
	for i, m := range in {
		at := field + "[" + strconv.Itoa(i) + "]"
		if _, err := delta.ParseCollection(m.GetCollection()); err != nil {
			c.Add(at+".collection", "%v", err)
		}
		if len(m.GetCollection()) > 1024 || !utf8.ValidString(m.GetCollection()) || !spaceless(m.GetCollection()) {
			c.Add(at+".collection", "too long, or holds a space or invalid UTF-8")
		}
		rv, err := delta.ParseRV(m.GetRevision().GetResourceVersion())
		if err != nil {
			c.Add(at+".revision.resource_version", "%v", err)
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

// Trace checks a traceparent.
func (c *Checks) Trace(field, s string) {
	if len(s) > maxTrace || !spaceless(s) || !utf8.ValidString(s) {
		c.Add(field, "not a traceparent")
	}
}

// Names checks the names of expectations.
func (c *Checks) Names(field string, names []string) {
	if err := expectations.Check(field, names); err != nil {
		c.Add(field, "%v", err)
	}
}

// Owner checks the uid of the owner of expectations.
func (c *Checks) Owner(field, uid string, required bool) {
	switch {
	case uid == "" && required:
		c.Add(field, "empty")
	case len(uid) > expectations.MaxNameLen || !spaceless(uid) || !utf8.ValidString(uid):
		c.Add(field, "too long, or holds a space or invalid UTF-8")
	}
}

// Refs checks references to leases.
func (c *Checks) Refs(field string, refs []*queuev1.LeaseRef) {
	c.Count(field, len(refs), 0, maxResume)
	for i, r := range refs {
		at := field + "[" + strconv.Itoa(i) + "]"
		c.Queue(at+".queue", r.GetQueue())
		c.Key(at+".key", r.GetKey())
		c.Token(at+".token", r.GetToken())
	}
}

// CheckName says what is wrong with the name of a queue.
func CheckName(name string) error {
	ok := name != "" && len(name) <= MaxName
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_' || c == '/'
	}
	if !ok {
		return fmt.Errorf("name %.64q is not 1 to %d of letters, digits, '.', '-', '_' and '/'", name, MaxName)
	}
	return nil
}

// EachKey is an operation on each key of a request, checked.
func EachKey(queue string, keys []string, kind workqueue.OpKind) ([]workqueue.Op, error) {
	c := &Checks{}
	c.Queue("queue", queue)
	c.Count("keys", len(keys), 1, MaxItems)
	ops := make([]workqueue.Op, min(len(keys), MaxItems))
	for i := range ops {
		c.Key("keys["+strconv.Itoa(i)+"]", keys[i])
		ops[i] = workqueue.Op{Kind: kind, Key: keys[i]}
	}
	return ops, c.Err()
}
