package deltalog

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// Config says where the log is. The zero value is a server on this machine.
type Config struct {
	// URL of the server, or several separated by commas. Default nats://127.0.0.1:4222.
	URL string
	// Credentials is a file with the NATS user's credentials; empty for none.
	Credentials string
	// Options are added to the connection's, as nats.Secure for TLS.
	Options []nats.Option
	// Name of the connection, which the server shows. Default "deltaplane".
	Name string
	// Replicas of what is made next to the log. Default 1.
	Replicas int
	// TombstoneTTL is how long the log keeps deletions, as the reflector has it. A trigger that was
	// away for longer adds every key. Default 1 h, at least 1 s.
	TombstoneTTL time.Duration
	// Retry makes Connect return although the server was not reached, or refused; the connection goes
	// on trying, and [Conn.Away] says what it waits for.
	Retry bool
	// Log receives events of the connection. Default: nowhere.
	Log *slog.Logger
}

// Conn is a connection to the log. It is safe for concurrent use and reconnects for as long as it
// is open.
type Conn struct{ stream *stream.Conn }

// Connect connects to a server, which must answer before ctx ends, unless the configuration says
// Retry.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	conn, err := stream.Connect(ctx, stream.Config{
		URL: cfg.URL, Credentials: cfg.Credentials, Options: cfg.Options, Name: cfg.Name,
		Replicas: cfg.Replicas, TombstoneTTL: cfg.TombstoneTTL, Retry: cfg.Retry, Log: cfg.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("deltalog: %w", err)
	}
	return &Conn{conn}, nil
}

// Close closes the connection and ends what reads from it.
func (c *Conn) Close() { c.stream.Close() }

// Healthy reports whether the server answers.
func (c *Conn) Healthy() bool { return c.stream.Healthy() }

// Away is nil while the server answers, and else names it and what the last attempt to reach it met
// with.
func (c *Conn) Away() error { return c.stream.Away() }

// Log is the log of a trigger's collections. Triggers of one name share what is to be read, as the
// replicas of one controller do, and one that starts goes on where the last one ended.
func (c *Conn) Log(cfg client.TriggerConfig) client.Log {
	return &log{c.stream, stream.ConsumeConfig{Name: consumerName(cfg.Name), Collections: cfg.Collections(), HeadersOnly: true, Gather: cfg.Gather}}
}

// log implements [client.Log].
type log struct {
	conn *stream.Conn
	cfg  stream.ConsumeConfig
}

func (l *log) Consume(ctx context.Context, handler func(context.Context, client.Batch) error) error {
	return l.conn.Consume(ctx, l.cfg, func(ctx context.Context, w stream.Work) error {
		return handler(ctx, client.Batch{Collection: w.Collection, Records: w.Records, Gap: string(w.Gap)})
	})
}

// consumerName is the name of a trigger's durable consumer, which may not have every letter.
func consumerName(name string) string {
	var b strings.Builder
	b.WriteString("trigger-")
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02X", c)
		}
	}
	return b.String()
}
