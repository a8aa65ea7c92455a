package deltalog

import (
	"context"
	"errors"
	"sync"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// Memory keeps the generations that triggers have seen in a bucket next to the log, so that they
// live exactly as long as the positions they belong to.
func (c *Conn) Memory() client.Memory { return &memory{conn: c.stream} }

const bucketName = "deltaplane-triggers"

// Buckets are those of NATS that a connection writes, beside the log's own.
var Buckets = []string{bucketName}

// memory implements [client.Memory].
type memory struct {
	conn *stream.Conn

	mu     sync.Mutex // guards bucket
	bucket *stream.Bucket
}

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

func (m *memory) Save(ctx context.Context, name, value string) error {
	b, err := m.open(ctx)
	if err != nil {
		return err
	}
	_, err = b.Put(ctx, name, []byte(value))
	return err
}
