package serve

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/services/queue"
)

// queueFlags say where queues are kept.
type queueFlags struct {
	config       queue.Config
	password     string // files
	sentinel     string
	tls          certs.Config
	redisTLSName string
}

func (q *queueFlags) register(flags *pflag.FlagSet) {
	defer cli.Section(flags, cli.SectionQueues)()
	flags.StringVar(&q.config.RedisURL, "redis-url", "", "`URL` of the Redis that keeps the queues, see \"serve queue --help\" (default: queues are kept in memory)")
	flags.StringVar(&q.config.RedisUsername, "redis-username", "", "`user` Redis knows this service as, in place of the URL's")
	flags.StringVar(&q.password, "redis-password-file", "", "`file` with the password of Redis, in place of the URL's, read again at each connection")
	flags.StringVar(&q.config.RedisSentinelUsername, "redis-sentinel-username", "", "`user` the sentinels know this service as")
	flags.StringVar(&q.sentinel, "redis-sentinel-password-file", "", "`file` with the password of the sentinels, read again at each connection")
	flags.StringVar(&q.tls.CAFile, "redis-tls-ca", "", "PEM `file` of the authorities that sign the certificate of Redis (default: the system's)")
	flags.StringVar(&q.tls.CertFile, "redis-tls-cert", "", "PEM `file` of the certificate shown to Redis")
	flags.StringVar(&q.tls.KeyFile, "redis-tls-key", "", "PEM `file` of its key")
	flags.StringVar(&q.redisTLSName, "redis-tls-server-name", "", "`name` the certificate of Redis must have (default: the host's)")
	flags.StringVar(&q.config.RedisPrefix, "redis-prefix", "dp", "`text` every Redis key begins with")
	flags.BoolVar(&q.config.AllowEviction, "redis-allow-eviction", false, "permit a Redis that evicts keys, which can lose queues silently")
	flags.BoolVar(&q.config.Fsync, "queue-fsync", false, "acknowledge only what is on disk (memory engine)")
	flags.IntVar(&q.config.HistoryKeys, "queue-history-keys", 100_000, "keys whose last 8 events are remembered for \"queue describe\" and \"why\", about 500 bytes each; below zero for none")
	flags.IntVar(&q.config.MaxPending, "queue-max-pending", 100_000, "operations of one partition that may wait for the store before more are refused")
	flags.IntVar(&q.config.MaxQueues, "queue-max-queues", 10_000, "queues that may be made; further ones are refused with TOO_MANY_QUEUES, those that exist go on")
	flags.IntVar(&q.config.MaxSessions, "queue-max-sessions", 100_000, "sessions that are remembered; at the limit those that nobody uses are forgotten, and further ones are refused with TOO_MANY_SESSIONS")
	flags.DurationVar(&q.config.ExpireAfter, "queue-expire-after", 0, "delete a queue with its configuration once it is empty and nobody has used it for this long, on any server: no call but a look at it, no open stream on it; 1m at least (default 0: never)")
}

var redisSchemes = []string{"redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"}

// check reports every fault of the flags together. It names no URL: that may hold a password.
func (q *queueFlags) check() error {
	errs := []error{q.config.Validate()}
	scheme, _, ok := strings.Cut(q.config.RedisURL, "://")
	ok = ok && slices.Contains(redisSchemes, scheme)
	if _, err := url.Parse(q.config.RedisURL); !strings.Contains(scheme, "+") { // several hosts are not what URLs have
		ok = ok && err == nil
	}
	if q.config.RedisURL != "" && !ok {
		errs = append(errs, errors.New("--redis-url is not redis://[user:password@]host:port[/db], redis+sentinel://host,host/master or redis+cluster://host,host (or rediss)"))
	}
	secured := strings.HasPrefix(scheme, "rediss")
	for flag, value := range map[string]string{
		"redis-username": q.config.RedisUsername, "redis-password-file": q.password,
		"redis-sentinel-username": q.config.RedisSentinelUsername, "redis-sentinel-password-file": q.sentinel,
		"redis-tls-ca": q.tls.CAFile, "redis-tls-cert": q.tls.CertFile, "redis-tls-key": q.tls.KeyFile, "redis-tls-server-name": q.redisTLSName,
	} {
		switch {
		case value == "":
		case q.config.RedisURL == "":
			errs = append(errs, fmt.Errorf("--%s is for a Redis: set --redis-url as well", flag))
		case strings.HasPrefix(flag, "redis-tls-") && !secured:
			errs = append(errs, fmt.Errorf("--%s has no effect without TLS: write --redis-url with rediss", flag))
		}
	}
	if certs.Validate(q.tls) != nil {
		errs = append(errs, errors.New("--redis-tls-cert and --redis-tls-key need one another"))
	}
	slices.SortStableFunc(errs, func(a, b error) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return errors.Join(errs...)
}

// readSecrets reads the files that the flags name. All faults are reported together.
func (q *queueFlags) readSecrets(c *queue.Config) error {
	var errs []error
	read := func(flag, path string) func() (string, error) {
		if path == "" {
			return nil
		}
		last, err := readSecret(flag, path)
		errs = append(errs, err)
		var mu sync.Mutex // guards last
		return func() (string, error) {
			mu.Lock()
			defer mu.Unlock()
			if now, err := readSecret(flag, path); err == nil {
				last = now // else it is being replaced, or is gone: the server says whether the last one is good
			}
			return last, nil
		}
	}
	c.RedisPasswordNow = read("redis-password-file", q.password)
	c.RedisSentinelPassword = read("redis-sentinel-password-file", q.sentinel)
	if (q.tls != certs.Config{}) || q.redisTLSName != "" {
		var err error
		if c.RedisTLS, err = certs.ClientNow(q.tls, q.redisTLSName); err != nil {
			errs = append(errs, fmt.Errorf("--redis-tls: %w", err))
		}
	}
	return errors.Join(errs...)
}
