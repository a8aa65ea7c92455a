package indexer

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
	errCollectionNotFound  = errors.New("collection not found")
	errCollectionAmbiguous = errors.New("collection name is ambiguous")
	errNotSynced           = errors.New("collection is not synced")
	errRevisionNotReached  = errors.New("revision not reached in time")
	errNotExact            = errors.New("no exact state in time")
	errKeyNotFound         = errors.New("key not found")
	errKeyQuarantined      = errors.New("newest version of the key cannot be read")
	errIndexNotFound       = errors.New("index not found")
	errIndexBuilding       = errors.New("index is being built")
	errIndexConflict       = errors.New("index has another definition")
	errTooManyIndexes      = errors.New("too many indexes")
	errDefinitionsAway     = errors.New("declared indexes cannot be reached")
	errIndexFailed         = errors.New("index cannot vouch for its answer")
	errSnapshotGone        = errors.New("snapshot of the page token is gone")
	errWatcherTooSlow      = errors.New("watcher fell behind by more than is kept")
	errTooManyWatchers     = errors.New("too many watchers")
	errRequestMemory       = errors.New("requests that wait hold too much memory")
	errTooLarge            = errors.New("response too large")
	errMemoryBudget        = errors.New("collection does not fit into the memory budget")
	errStopping            = errors.New("server is stopping")
)

// rules map the above to statuses.
var rules = []rpc.Rule{
	{Is: errCollectionNotFound, Code: codes.NotFound, Reason: "COLLECTION_NOT_FOUND", Metadata: metadata},
	{Is: errCollectionAmbiguous, Code: codes.InvalidArgument, Reason: "COLLECTION_AMBIGUOUS", Metadata: metadata},
	{Is: errNotSynced, Code: codes.Unavailable, Reason: "COLLECTION_NOT_SYNCED", Retry: time.Second, Metadata: metadata},
	{Is: errRevisionNotReached, Code: codes.DeadlineExceeded, Reason: "REVISION_NOT_REACHED", Metadata: metadata},
	{Is: errNotExact, Code: codes.DeadlineExceeded, Reason: "STATE_NOT_EXACT", Metadata: metadata},
	{Is: errKeyNotFound, Code: codes.NotFound, Reason: "KEY_NOT_FOUND", Metadata: metadata},
	{Is: errKeyQuarantined, Code: codes.DataLoss, Reason: "KEY_QUARANTINED", Metadata: metadata},
	{Is: errIndexNotFound, Code: codes.NotFound, Reason: "INDEX_NOT_FOUND", Metadata: metadata},
	{Is: errIndexBuilding, Code: codes.Unavailable, Reason: "INDEX_BUILDING", Retry: time.Second, Metadata: metadata},
	{Is: errIndexConflict, Code: codes.AlreadyExists, Reason: "INDEX_CONFLICT", Metadata: metadata},
	{Is: errTooManyIndexes, Code: codes.ResourceExhausted, Reason: "TOO_MANY_INDEXES", Metadata: metadata},
	{Is: errDefinitionsAway, Code: codes.Unavailable, Reason: "DEFINITIONS_UNAVAILABLE", Retry: time.Second, Metadata: metadata},
	{Is: errIndexFailed, Code: codes.FailedPrecondition, Reason: "INDEX_FAILED", Metadata: metadata},
	{Is: errSnapshotGone, Code: codes.FailedPrecondition, Reason: "SNAPSHOT_GONE", Metadata: metadata},
	{Is: errWatcherTooSlow, Code: codes.ResourceExhausted, Reason: "WATCHER_TOO_SLOW", Retry: 100 * time.Millisecond, Spread: 900 * time.Millisecond, Metadata: metadata},
	{Is: errTooManyWatchers, Code: codes.ResourceExhausted, Reason: "TOO_MANY_WATCHERS", Retry: 2 * time.Second, Spread: 6 * time.Second, Metadata: metadata},
	{Is: errRequestMemory, Code: codes.ResourceExhausted, Reason: "REQUEST_MEMORY", Retry: time.Second, Spread: 3 * time.Second, Metadata: metadata},
	{Is: errTooLarge, Code: codes.ResourceExhausted, Reason: "RESPONSE_TOO_LARGE", Metadata: metadata},
	{Is: errMemoryBudget, Code: codes.ResourceExhausted, Reason: "MEMORY_BUDGET", Retry: 10 * time.Second, Spread: 20 * time.Second, Metadata: metadata},
	{Is: errStopping, Code: codes.Unavailable, Reason: "STOPPING", Retry: 50 * time.Millisecond, Spread: 450 * time.Millisecond, Metadata: metadata},
}

// fault is one of the errors above with what the caller should know.
type fault struct {
	is   error
	text string
	meta map[string]string
}

// faultText bounds what an error repeats of a request: trailers have limits.
const faultText = 1 << 10

// newFault describes an error; the pairs become ErrorInfo metadata. Long values
// are cut, but for a page token, which is of no use then.
func newFault(is error, text string, pairs ...string) *fault {
	f := &fault{is: is, text: clip(text), meta: make(map[string]string, len(pairs)/2)}
	for i := 0; i+1 < len(pairs); i += 2 {
		f.meta[pairs[i]] = pairs[i+1]
		if pairs[i] != "page_token" {
			f.meta[pairs[i]] = clip(pairs[i+1])
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

// reached adds how far the snapshot has come, and the upper bound of what it holds.
func (f *fault) reached(snap *store.Snapshot) *fault {
	st := snap.State()
	f.meta["epoch"], f.meta["resource_version"] = strconv.FormatUint(st.Revision.Epoch, 10), st.Revision.RV
	f.meta["upper_epoch"], f.meta["upper"] = strconv.FormatUint(st.Upper.Epoch, 10), st.Upper.RV
	return f
}

func (f *fault) Error() string {
	if f.text == "" {
		return f.is.Error()
	}
	return fmt.Sprintf("%v: %s", f.is, f.text)
}

// Unwrap returns the kind of the fault.
func (f *fault) Unwrap() error { return f.is }

func metadata(err error) map[string]string {
	if f, ok := errors.AsType[*fault](err); ok {
		return f.meta
	}
	return nil
}
