package fault

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// What can go wrong with a read, beside bad requests.
var (
	ErrCollectionNotFound  = errors.New("collection not found")
	ErrCollectionAmbiguous = errors.New("collection name is ambiguous")
	ErrNotSynced           = errors.New("collection is not synced")
	ErrRevisionNotReached  = errors.New("revision not reached in time")
	ErrNotExact            = errors.New("no exact state in time")
	ErrKeyNotFound         = errors.New("key not found")
	ErrKeyQuarantined      = errors.New("newest version of the key cannot be read")
	ErrIndexNotFound       = errors.New("index not found")
	ErrIndexBuilding       = errors.New("index is being built")
	ErrIndexConflict       = errors.New("index has another definition")
	ErrTooManyIndexes      = errors.New("too many indexes")
	ErrDefinitionsAway     = errors.New("declared indexes cannot be reached")
	ErrIndexFailed         = errors.New("index cannot vouch for its answer")
	ErrSnapshotGone        = errors.New("snapshot of the page token is gone")
	ErrWatcherTooSlow      = errors.New("watcher fell behind by more than is kept")
	ErrTooManyWatchers     = errors.New("too many watchers")
	ErrRequestMemory       = errors.New("requests that wait hold too much memory")
	ErrTooLarge            = errors.New("response too large")
	ErrMemoryBudget        = errors.New("collection does not fit into the memory budget")
	ErrStopping            = errors.New("server is stopping")
)

// Rules map the above to statuses.
var Rules = []rpc.Rule{
	{Is: ErrCollectionNotFound, Code: codes.NotFound, Reason: "COLLECTION_NOT_FOUND", Metadata: metadata},
	{Is: ErrCollectionAmbiguous, Code: codes.InvalidArgument, Reason: "COLLECTION_AMBIGUOUS", Metadata: metadata},
	{Is: ErrNotSynced, Code: codes.Unavailable, Reason: "COLLECTION_NOT_SYNCED", Retry: time.Second, Metadata: metadata},
	{Is: ErrRevisionNotReached, Code: codes.DeadlineExceeded, Reason: "REVISION_NOT_REACHED", Metadata: metadata},
	{Is: ErrNotExact, Code: codes.DeadlineExceeded, Reason: "STATE_NOT_EXACT", Metadata: metadata},
	{Is: ErrKeyNotFound, Code: codes.NotFound, Reason: "KEY_NOT_FOUND", Metadata: metadata},
	{Is: ErrKeyQuarantined, Code: codes.DataLoss, Reason: "KEY_QUARANTINED", Metadata: metadata},
	{Is: ErrIndexNotFound, Code: codes.NotFound, Reason: "INDEX_NOT_FOUND", Metadata: metadata},
	{Is: ErrIndexBuilding, Code: codes.Unavailable, Reason: "INDEX_BUILDING", Retry: time.Second, Metadata: metadata},
	{Is: ErrIndexConflict, Code: codes.AlreadyExists, Reason: "INDEX_CONFLICT", Metadata: metadata},
	{Is: ErrTooManyIndexes, Code: codes.ResourceExhausted, Reason: "TOO_MANY_INDEXES", Metadata: metadata},
	{Is: ErrDefinitionsAway, Code: codes.Unavailable, Reason: "DEFINITIONS_UNAVAILABLE", Retry: time.Second, Metadata: metadata},
	{Is: ErrIndexFailed, Code: codes.FailedPrecondition, Reason: "INDEX_FAILED", Metadata: metadata},
	{Is: ErrSnapshotGone, Code: codes.FailedPrecondition, Reason: "SNAPSHOT_GONE", Metadata: metadata},
	{Is: ErrWatcherTooSlow, Code: codes.ResourceExhausted, Reason: "WATCHER_TOO_SLOW", Retry: 100 * time.Millisecond, Spread: 900 * time.Millisecond, Metadata: metadata},
	{Is: ErrTooManyWatchers, Code: codes.ResourceExhausted, Reason: "TOO_MANY_WATCHERS", Retry: 2 * time.Second, Spread: 6 * time.Second, Metadata: metadata},
	{Is: ErrRequestMemory, Code: codes.ResourceExhausted, Reason: "REQUEST_MEMORY", Retry: time.Second, Spread: 3 * time.Second, Metadata: metadata},
	{Is: ErrTooLarge, Code: codes.ResourceExhausted, Reason: "RESPONSE_TOO_LARGE", Metadata: metadata},
	{Is: ErrMemoryBudget, Code: codes.ResourceExhausted, Reason: "MEMORY_BUDGET", Retry: 10 * time.Second, Spread: 20 * time.Second, Metadata: metadata},
	{Is: ErrStopping, Code: codes.Unavailable, Reason: "STOPPING", Retry: 50 * time.Millisecond, Spread: 450 * time.Millisecond, Metadata: metadata},
}

// Error is one of the errors above with what the caller should know.
type Error struct {
	is   error
	Text string
	Meta map[string]string
}

// faultText bounds what an error repeats of a request: trailers have limits.
const faultText = 1 << 10

// New describes an error; the pairs become ErrorInfo metadata. Long values
// are cut, but for a page token, which is of no use then.
func New(is error, text string, pairs ...string) *Error {
	f := &Error{is: is, Text: clip(text), Meta: make(map[string]string, len(pairs)/2)}
	for i := 0; i+1 < len(pairs); i += 2 {
		f.Meta[pairs[i]] = pairs[i+1]
		if pairs[i] != "page_token" {
			f.Meta[pairs[i]] = clip(pairs[i+1])
		}
	}
	return f
}

func clip(text string) string {
	if len(text) <= faultText {
		return text
	}
	return strings.ToValidUTF8(text[:faultText], "") + "..."
}

// Reached adds how far the snapshot has come, and the upper bound of what it holds.
func (f *Error) Reached(snap *store.Snapshot) *Error {
	st := snap.State()
	f.Meta["epoch"], f.Meta["resource_version"] = strconv.FormatUint(st.Revision.Epoch, 10), st.Revision.RV
	f.Meta["upper_epoch"], f.Meta["upper"] = strconv.FormatUint(st.Upper.Epoch, 10), st.Upper.RV
	return f
}

// Error implements error.
func (f *Error) Error() string {
	if f.Text == "" {
		return f.is.Error()
	}
	return fmt.Sprintf("%v: %s", f.is, f.Text)
}

// Unwrap returns the kind of the fault.
func (f *Error) Unwrap() error { return f.is }

func metadata(err error) map[string]string {
	if f, ok := errors.AsType[*Error](err); ok {
		return f.Meta
	}
	return nil
}
