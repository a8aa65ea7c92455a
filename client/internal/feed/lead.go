package feed

import (
	"time"

	"github.com/deltaplane/deltaplane/client"
)

// Key is the only key of the queue: who holds its lease leads.
const Key = "feed"

const (
	// timeout bounds how long a replica leads, which its lease alone is to do.
	timeout = 10 * 365 * 24 * time.Hour
	// margin is next to nothing: what a leader does beyond its lease is a duplicate or is refused
	// by its token.
	margin = time.Millisecond
)

// QueueConfig makes the queue, beside one of keys: the position must not live longer than the keys
// do.
func QueueConfig(lease time.Duration, keys client.QueueConfig) client.QueueConfig {
	return client.QueueConfig{
		Lease: lease, MaxLease: lease, Durability: keys.Durability, Replicas: keys.Replicas,
		RateLimiter: client.Exponential(50*time.Millisecond, time.Second),
	}
}

// Led is the configuration of a worker whose reconcile is its replica's leadership.
func Led(cfg client.WorkerConfig, lease time.Duration) client.WorkerConfig {
	cfg.Lease, cfg.Margin, cfg.Timeout = lease, margin, timeout
	return cfg
}
