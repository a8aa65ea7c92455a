package stream

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// pulled is a stream of records that grow, and who pulls them.
type pulled struct {
	*testing.T
	c    *Conn
	made int
}

const pulledStream, pulledRecords = "pulled", 400

func newPulled(t *testing.T) *pulled {
	c := connected(t, Config{})
	if _, err := c.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: pulledStream, Subjects: []string{pulledStream}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	for i := range pulledRecords {
		if _, err := c.js.Publish(t.Context(), pulledStream, make([]byte, 2000+10*i)); err != nil {
			t.Fatal(err)
		}
	}
	return &pulled{T: t, c: c}
}

// from begins to pull all records, at most so many bytes at a time. The names of all consumers have one length, as the records' sizes depend on it.
func (p *pulled) from(most int) (jetstream.Consumer, *puller) {
	p.Helper()
	p.made++
	cons, err := p.c.js.CreateConsumer(p.Context(), pulledStream, jetstream.ConsumerConfig{
		Name: fmt.Sprintf("reader%03d", p.made), AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true,
	})
	if err != nil {
		p.Fatal(err)
	}
	pull, err := p.c.puller(pulledStream, cons.CachedInfo().Name, demand{pullMessages, most, pullExpires})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(pull.close)
	return cons, pull
}

// all gathers the records that come within a while and returns their sizes.
func (p *pulled) all(pull *puller) (sizes []int) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), 5*time.Second)
	defer cancel()
	for len(sizes) < pulledRecords {
		batch, err := pull.gather(nil, pulledRecords)
		if err != nil {
			p.Fatal(err)
		}
		for i := range batch {
			sizes = append(sizes, batch[i].size)
		}
		if len(sizes) == pulledRecords {
			break
		}
		select {
		case <-pull.sink.wake:
		case m := <-pull.msgs:
			if err := pull.push(m); err != nil {
				p.Fatal(err)
			}
		case <-ctx.Done():
			return sizes
		}
	}
	return sizes
}

// The server says nothing of a request that ends because its bytes were used to the last one: the messages that it was also for do not come.
func TestARequestWhoseBytesAreUsedToTheLastIsOver(t *testing.T) {
	t.Parallel()
	p := newPulled(t)
	_, pull := p.from(1 << 20)
	sizes := p.all(pull)
	if len(sizes) != pulledRecords {
		t.Fatalf("%d of %d records came", len(sizes), pulledRecords)
	}
	for _, first := range []int{100, 120, 150, 200} {
		most := 0
		for _, size := range sizes[:first] {
			most += size
		}
		cons, pull := p.from(most)
		for over := false; !over; {
			info, err := cons.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			over = info.NumWaiting == 0 && info.Delivered.Consumer == uint64(first)
			if !over && (info.NumWaiting == 0 && info.Delivered.Consumer > 0 || t.Context().Err() != nil) {
				t.Fatalf("of the first request %d records came, want %d: its bytes are not used to the last", info.Delivered.Consumer, first)
			}
		}
		if got := p.all(pull); len(got) != pulledRecords {
			t.Errorf("%d bytes at a time: nothing came behind %d of %d records: %d messages and %d bytes are thought to be under way", most, len(got), pulledRecords, pull.messages, pull.bytes)
		}
		if pull.bytes > most+leastPull {
			t.Errorf("%d bytes were asked for at once, of %d", pull.bytes, most)
		}
	}
}
