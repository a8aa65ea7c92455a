package serve

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// registerLimits adds the flags for what one gRPC server takes, and how it stops. Zero is the
// default of the configuration.
func registerLimits(flags *pflag.FlagSet, prefix string, c *rpc.ServerConfig, grace time.Duration) {
	defer cli.Section(flags, cli.SectionLimits)()
	flags.IntVar(&c.MaxMessageBytes, prefix+"max-message-bytes", 0, "`bytes` one received message may have (default 16 MiB; methods that need less have less, a health check 4 KiB). Headers may have 64 KiB, and compressed messages are refused")
	flags.IntVar(&c.MaxConnections, prefix+"max-connections", 0, "`connections` that may be open, those whose handshake is under way among them; further ones are closed (default 8192, -1 for any number). As many health calls may be under way")
	flags.IntVar(&c.MaxClientConnections, prefix+"max-client-connections", 0, "`connections` that one host, or /64 network of IPv6, may have open (default 1024, -1 for any number)")
	flags.IntVar(&c.MaxClientCalls, prefix+"max-client-calls", 0, "unary `calls` one client may have under way; more are answered TOO_MANY_REQUESTS, to be tried again (default 4096, -1 for any number). A client is the name of its token, else the subject of its certificate, else the host it calls from")
	flags.IntVar(&c.MaxClientStreams, prefix+"max-client-streams", 0, "`streams` one client may have open (default 8192, -1 for any number)")
	flags.IntVar(&c.MaxStreams, prefix+"max-streams", 0, "`streams` all clients together may have open (default 32768, -1 for any number)")
	flags.DurationVar(&c.DrainGrace, prefix+"drain-grace", grace, "how long calls are still taken after health has turned NOT_SERVING, for balancers to notice")
	flags.DurationVar(&c.StopTimeout, prefix+"stop-timeout", 0, "how long calls in hand may then take before they are cut off (default 5s)")
}

// registerIndexer adds the flags for how an indexer answers and what it keeps.
func registerIndexer(flags *pflag.FlagSet, c *indexer.Config) {
	defer cli.Section(flags, cli.SectionIndex)()
	flags.DurationVar(&c.CheckpointEvery, "index-checkpoint-every", 0, "least time between two checkpoints of a collection; one that has hardly changed is left for longer (default 5m)")
	flags.IntVar(&c.CheckpointRate, "index-checkpoint-rate", 0, "`bytes` per second a checkpoint is written at, except at a stop (default 64 MiB)")
	flags.DurationVar(&c.DefaultWait, "index-default-wait", 0, "how long a read waits for the revision it asks for, unless it says (default 3s)")
	flags.DurationVar(&c.MaxWait, "index-max-wait", 0, "longest wait a read may ask for (default 30s)")
	flags.IntVar(&c.MaxPageBytes, "index-max-page-bytes", 0, "`bytes` after which a page ends; one object is always returned (default 3.5 MiB)")
	flags.IntVar(&c.MaxResponseBytes, "index-max-response-bytes", 0, "`bytes` an answer without pages may have (default 32 MiB)")
	flags.DurationVar(&c.SnapshotTTL, "index-snapshot-ttl", 0, "how long the snapshot of a page token is kept after its last use (default 1m)")
	flags.IntVar(&c.MaxSnapshots, "index-max-snapshots", 0, "`snapshots` kept for page tokens; beyond it go those of the clients that have most, the one not used for longest first (default 64)")
	flags.DurationVar(&c.SnapshotMaxAge, "index-snapshot-max-age", 0, "how long such a snapshot is kept in all once it is not the newest (default 15m)")
	flags.IntVar(&c.SnapshotBytes, "index-snapshot-bytes", 0, "`bytes` of replaced payloads the snapshots may hold, about; beyond it the oldest go (default 256 MiB)")
	flags.IntVar(&c.MaxWatchers, "index-max-watchers", 0, "`watches` that may be open (default 10000)")
	flags.IntVar(&c.MaxClientWatchers, "index-max-client-watchers", 0, "`watches` that one client may have open (default a quarter of --index-max-watchers, at least 100)")
	flags.Var((*byteSize)(&c.MaxRequestBytes), "index-max-request-bytes", "`bytes` that requests may hold while they wait, one client half of them: what watches select and their readers know, calls on Query streams, answers not taken yet; beside --index-memory-budget (default an eighth of that, 64Mi to 256Mi)")
	flags.IntVar(&c.MaxInitialStates, "index-max-initial-states", 0, "`states` of more than 1,000 objects sent at a time; other watches wait in line, the clients in turn (default 16)")
}
