package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/seal"
)

// Config says how to reach NATS and how logs are made. The zero value means a server on this
// machine and the defaults.
type Config struct {
	// URL of the server or servers, comma separated; default nats://127.0.0.1:4222.
	URL string
	// Credentials is a file with the NATS user's credentials; empty for none.
	Credentials string
	// Options are added to the connection's, such as nats.InProcessServer of an embedded server or
	// TLS.
	Options []nats.Option
	// Name of the connection, shown by the server; default "deltaplane".
	Name string
	// Build is the version of this program, which term records name; empty when it is not known.
	Build string
	// Replicas of each stream; default 1.
	Replicas int
	// TombstoneTTL is how long a deletion stays in the log; default 1 h, at least 1 s.
	TombstoneTTL time.Duration
	// MaxPayload is the largest record in bytes; default 8 MiB. The server's max_payload must allow
	// it.
	MaxPayload int
	// WriteTimeout is how long a server may take nothing of what is written to it before the
	// connection is given up and opened again, also to another server; default 2 s. Until then
	// publishes wait, whatever their contexts say.
	WriteTimeout time.Duration
	// Encryption of payloads; the zero value encrypts none, and cannot read those that are encrypted.
	Encryption seal.Policy
	// Retry makes Dial return although no server was reached, or took what this side authenticates
	// with. The connection goes on trying, and [Conn.Away] says what it waits for.
	Retry bool
	// Memory keeps logs in memory instead of in files; for tests.
	Memory bool
	// Log receives connection events; default discards.
	Log *slog.Logger
}

// WithDefaults fills what is not set.
func (c Config) WithDefaults() Config {
	c.URL = cmp.Or(c.URL, nats.DefaultURL)
	c.Name = cmp.Or(c.Name, "deltaplane")
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.TombstoneTTL = cmp.Or(c.TombstoneTTL, time.Hour)
	c.MaxPayload = cmp.Or(c.MaxPayload, 8<<20)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 2*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

func (c Config) validate() error {
	errs := []error{c.Encryption.Validate()}
	if c.Replicas < 1 || c.Replicas > 5 {
		errs = append(errs, fmt.Errorf("replicas %d: want 1 to 5", c.Replicas))
	}
	if c.TombstoneTTL < time.Second {
		errs = append(errs, fmt.Errorf("tombstone ttl %v: want at least 1s", c.TombstoneTTL))
	}
	if c.MaxPayload < 1<<20 || c.MaxPayload > 64<<20 {
		errs = append(errs, fmt.Errorf("max payload %d: want 1 MiB to 64 MiB", c.MaxPayload))
	}
	if c.WriteTimeout < 0 {
		errs = append(errs, fmt.Errorf("write timeout %v: must not be negative", c.WriteTimeout))
	}
	return errors.Join(errs...)
}

// MaxInFlight is how many appends a writer may have unacknowledged. It is a constant of the
// protocol: a new leader fences the log by writing one record more than that, so every writer must
// keep to it.
const MaxInFlight = 256

// Conn is a connection to the log. It is safe for concurrent use and reconnects for as long as it
// is open.
type Conn struct {
	Config    Config
	NATS      *nats.Conn
	JetStream jetstream.JetStream

	Events *Signal // fires on every reconnect
	window *window
	dialer *stallDialer
	tries  tries
}

// Dial opens a connection. It fails when the server cannot be reached before ctx ends or within
// the first attempt, or refuses, unless the configuration says Retry; afterwards the connection
// heals itself, also from a refusal. A server without JetStream is not refused: what needs it fails
// with [ErrNoJetStream] and goes on trying.
func Dial(ctx context.Context, cfg Config) (*Conn, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("stream config: %w", err)
	}
	c := &Conn{Config: cfg, Events: NewSignal(), window: newWindow(), dialer: &stallDialer{timeout: cfg.WriteTimeout}}
	opts := append([]nats.Option{
		nats.Name(cfg.Name),
		nats.CustomInboxPrefix(Inboxes(cfg.Name)),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(cfg.Retry),
		nats.IgnoreAuthErrorAbort(), // a password is changed on both sides one after the other
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.ReconnectBufSize(-1), // a publish while away must fail at once; the writer decides what to send again
		nats.SetCustomDialer(c.dialer),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.ConnectHandler(func(nc *nats.Conn) { // of the first connection
			if c.tries.reached() {
				cfg.Log.Info("connected to the log", slog.String("server", nc.ConnectedServerName()))
				c.Events.Fire()
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			if c.tries.failed(err) && cfg.Retry {
				cfg.Log.Warn("cannot reach NATS yet", slog.String("server", hosts(cfg.URL)), slog.String("error", err.Error()))
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.tries.reached()
			cfg.Log.Info("reconnected to the log", slog.String("server", nc.ConnectedServerName()))
			c.window.forget(time.Now())
			c.Events.Fire()
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				cfg.Log.Warn("lost the connection to the log", slog.String("error", err.Error()))
			}
		}),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) {
			if refusal(err) && !nc.IsConnected() && !c.tries.failed(err) {
				return // each attempt meets with it; remind says so
			}
			cfg.Log.Warn("log connection error", slog.String("error", err.Error()))
		}),
	}, cfg.Options...)
	if cfg.Credentials != "" {
		opts = append(opts, nats.UserCredentials(cfg.Credentials))
	}
	nc, err := nats.Connect(cfg.URL, append(opts, c.dialer.inProcess)...)
	if err != nil {
		if bad, ok := errors.AsType[*url.Error](err); ok {
			err = fmt.Errorf("malformed url: %w", bad.Err) // the URL itself may hold a password
		}
		return nil, fmt.Errorf("connect to nats: %w", err)
	}
	c.NATS = nc
	c.JetStream, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4*MaxInFlight), jetstream.WithPublishAsyncTimeout(5*time.Second))
	if err == nil && nc.IsConnected() {
		_, err = c.JetStream.AccountInfo(ctx)
	}
	if err = Named(err); errors.Is(err, ErrNoJetStream) {
		cfg.Log.Warn("nats has no jetstream", slog.String("server", nc.ConnectedServerName()), slog.String("error", err.Error()))
		err = nil
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("check jetstream: %w", err)
	}
	go c.remind(nc.StatusChanged(nats.CLOSED))
	return c, nil
}

// Inboxes is the prefix of the subjects on which answers come: one of each connection's name, so
// that the server can keep the answers of one service from another.
func Inboxes(name string) string {
	return "_INBOX." + strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
}

// Reconnected is closed at the next reconnect.
func (c *Conn) Reconnected() <-chan struct{} { return c.Events.Wait() }

// Close ends the connection; what runs on it fails.
func (c *Conn) Close() { c.NATS.Close() }

// Healthy reports whether the connection is up at this moment.
func (c *Conn) Healthy() bool { return c.NATS.IsConnected() }

// TombstoneTTL is how long deletions stay in the log.
func (c *Conn) TombstoneTTL() time.Duration { return c.Config.TombstoneTTL }

// Collections lists the collections that have a log, in no particular order.
func (c *Conn) Collections(ctx context.Context) ([]delta.Collection, error) {
	lister := c.JetStream.ListStreams(ctx, jetstream.WithStreamListSubject("d.>"))
	var out []delta.Collection
	for info := range lister.Info() {
		name := info.Config.Metadata[metaCollection]
		if name == "" {
			continue
		}
		col, err := delta.ParseCollection(name)
		if err != nil || col.StreamName() != info.Config.Name {
			continue
		}
		out = append(out, col)
	}
	if err := lister.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return nil, fmt.Errorf("list logs: %w", Named(err))
	}
	return out, nil
}

// metaCollection is the stream metadata that names its collection.
const metaCollection = "deltaplane-collection"

// Signal tells any number of waiters that something happened since they last looked.
type Signal struct {
	mu sync.Mutex
	ch chan struct{} // guarded by mu; closed and replaced by Fire
}

// NewSignal makes a signal that nobody has fired.
func NewSignal() *Signal { return &Signal{ch: make(chan struct{})} }

// Wait is closed by the next Fire.
func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}

// Fire wakes everybody who waits.
func (s *Signal) Fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}

// Since is how long ago a time was, by whichever clock says more: the monotonic one stands still
// while the machine is suspended.
func Since(t time.Time) time.Duration {
	return max(time.Since(t), time.Now().Round(0).Sub(t.Round(0)))
}
