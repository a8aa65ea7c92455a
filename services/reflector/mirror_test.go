package reflector_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// mirror reads a collection's log as a well-behaved consumer does.
type mirror struct {
	mu       sync.Mutex
	follower delta.Follower
	objects  map[delta.Key]delta.Record
	seen     map[delta.Key]bool
	records  []delta.Record // all, in order
	resets   int
	changed  chan struct{}
}

func follow(t testing.TB, nats string, col delta.Collection) *mirror {
	t.Helper()
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	m := &mirror{objects: map[delta.Key]delta.Record{}, seen: map[delta.Key]bool{}, changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- conn.Read(ctx, col, stream.ReadConfig{}, m.handle) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Read() = %v", err)
		}
		conn.Close()
	})
	return m
}

func (m *mirror) handle(_ context.Context, b delta.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b.Reset {
		m.resets++
		clear(m.seen)
	}
	for _, r := range b.Records {
		m.records = append(m.records, r)
		if r.Kind != delta.KindDelta {
			continue
		}
		m.seen[r.Key] = true
		if held, ok := m.objects[r.Key]; !ok || delta.Apply(held.Stamp(), r.Stamp()) {
			m.objects[r.Key] = r
		}
	}
	if b.Replayed {
		for k := range m.objects {
			if !m.seen[k] {
				delete(m.objects, k)
			}
		}
	}
	m.follower.Apply(b)
	select {
	case m.changed <- struct{}{}:
	default:
	}
	return nil
}

func (m *mirror) readable() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.follower.Readable()
}

func (m *mirror) revision() delta.Revision {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.follower.Revision()
}

func (m *mirror) get(key delta.Key) (delta.Record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.objects[key]
	return r, ok
}

// live is key -> resource version of what is not deleted.
func (m *mirror) live() map[delta.Key]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[delta.Key]string{}
	for k, r := range m.objects {
		if !r.Tombstone() {
			out[k] = r.RV
		}
	}
	return out
}

// kinds are the records seen so far of one kind.
func (m *mirror) kinds(kind delta.Kind) []delta.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []delta.Record
	for _, r := range m.records {
		if r.Kind == kind {
			out = append(out, r)
		}
	}
	return out
}

func (m *mirror) until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for !cond() {
		select {
		case <-m.changed:
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%s: not seen in time; revision %v, %d objects", what, m.revision(), len(m.live()))
		}
	}
}
