package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// logSource is the delta log as a trigger reads it.
type logSource struct {
	conn *stream.Conn
	cfg  stream.ConsumeConfig
}

// Consume implements [client.Log].
func (l *logSource) Consume(ctx context.Context, handler func(context.Context, client.Batch) error) error {
	return l.conn.Consume(ctx, l.cfg, func(ctx context.Context, w stream.Work) error {
		return handler(ctx, client.Batch{Collection: w.Collection, Records: w.Records, Gap: string(w.Gap)})
	})
}

// consumerName joins parts into a name a durable consumer may have.
func consumerName(parts ...string) string {
	var b strings.Builder
	for i, part := range parts {
		if i > 0 {
			b.WriteByte('-')
		}
		for _, c := range []byte(part) {
			if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, "_%02X", c)
			}
		}
	}
	return b.String()
}

// memory keeps the triggers' generations in a bucket beside the log, so that
// they live exactly as long as the positions they belong to.
type memory struct {
	conn *stream.Conn

	mu     sync.Mutex // guards bucket
	bucket *stream.Bucket
}

const bucketName = "deltaplane-triggers"

func (m *memory) open(ctx context.Context) (*stream.Bucket, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bucket == nil {
		b, err := m.conn.Bucket(ctx, bucketName, 0)
		if err != nil {
			return nil, err
		}
		m.bucket = b
	}
	return m.bucket, nil
}

// Load implements [client.Memory].
func (m *memory) Load(ctx context.Context, name string) (string, error) {
	b, err := m.open(ctx)
	if err != nil {
		return "", err
	}
	entry, err := b.Get(ctx, name)
	if errors.Is(err, stream.ErrNoKey) {
		return "", nil
	}
	return string(entry.Value), err
}

// Save implements [client.Memory].
func (m *memory) Save(ctx context.Context, name, value string) error {
	b, err := m.open(ctx)
	if err != nil {
		return err
	}
	_, err = b.Put(ctx, name, []byte(value))
	return err
}
