package stream

import (
	"context"
	"time"

	"github.com/deltaplane/deltaplane/internal/stream/kv"
	"github.com/deltaplane/deltaplane/internal/stream/lease"
	"github.com/deltaplane/deltaplane/internal/stream/link"
	"github.com/deltaplane/deltaplane/internal/stream/read"
	"github.com/deltaplane/deltaplane/internal/stream/write"
)

// What callers of [Conn] name; the packages that hold these say what they promise.
type (
	// Config is the settings of a connection.
	Config = link.Config
	// Tail is the state of a log.
	Tail = link.Tail

	// Handler handles what a log reader gets.
	Handler = read.Handler
	// ReadConfig is the settings of [Conn.Read].
	ReadConfig = read.Config
	// ConsumeConfig is the settings of [Conn.Consume].
	ConsumeConfig = read.ConsumeConfig
	// Work is one batch for a shared durable consumer.
	Work = read.Work
	// Gap says why the keys named so far may not be all that matter.
	Gap = read.Gap

	// Writer appends to a log for one term.
	Writer = write.Writer
	// WriterConfig says on whose behalf to write.
	WriterConfig = write.Config

	// Bucket is a small set of keys with values and revisions.
	Bucket = kv.Bucket
	// Entry is one key of a bucket.
	Entry = kv.Entry
	// Follower keeps up with a bucket, through its loss.
	Follower = kv.Follower
	// FollowConfig is the settings of a [Follower].
	FollowConfig = kv.FollowConfig

	// Lease is a lease that this process holds.
	Lease = lease.Lease
	// LeaseConfig is the settings of [Conn.Lease].
	LeaseConfig = lease.Config
	// Claim is what the holder of a lease has written into it.
	Claim = lease.Claim
)

// MaxInFlight is how many appends a writer may have unacknowledged.
const MaxInFlight = link.MaxInFlight

// The reasons for a gap. Empty means none.
const (
	GapNew   = read.GapNew
	GapEpoch = read.GapEpoch
	GapLag   = read.GapLag
	GapLost  = read.GapLost
)

// Sentinel errors of the log, of buckets and of leases.
var (
	ErrDeposed        = link.ErrDeposed
	ErrLogLost        = link.ErrLogLost
	ErrBootstrap      = link.ErrBootstrap
	ErrNoLog          = link.ErrNoLog
	ErrForeign        = link.ErrForeign
	ErrTooLarge       = link.ErrTooLarge
	ErrNoJetStream    = link.ErrNoJetStream
	ErrLogFull        = link.ErrLogFull
	ErrUnavailable    = link.ErrUnavailable
	ErrNoKey          = kv.ErrNoKey
	ErrConflict       = kv.ErrConflict
	ErrOutcomeUnknown = kv.ErrOutcomeUnknown
)

// NewFollower makes a follower of a bucket that open opens. Nothing is followed before Run.
func NewFollower(open func(ctx context.Context, name string, ttl time.Duration) (*Bucket, error), cfg FollowConfig) *Follower {
	return kv.NewFollower(open, cfg)
}
