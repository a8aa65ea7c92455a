package read

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// pulled is a stream of records that grow, and the consumers of it.
type pulled struct {
	*testing.T
	c    *link.Conn
	made int
}

const pulledStream, pulledRecords = "pulled", 400

func newPulled(t *testing.T) *pulled {
	c := connected(t, link.Config{})
	if _, err := c.JetStream.CreateStream(t.Context(), jetstream.StreamConfig{Name: pulledStream, Subjects: []string{pulledStream}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	for i := range pulledRecords {
		if _, err := c.JetStream.PublishAsync(pulledStream, make([]byte, 2000+10*i)); err != nil {
			t.Fatal(err)
		}
	}
	<-c.JetStream.PublishAsyncComplete()
	return &pulled{T: t, c: c}
}

// from requests all records, bytes at a time. The names of all consumers have one length, as the
// records' sizes depend on it.
func (p *pulled) from(bytes int) (jetstream.Consumer, *deliveries) {
	p.Helper()
	p.made++
	cons, err := p.c.JetStream.CreateConsumer(p.Context(), pulledStream, jetstream.ConsumerConfig{
		Name: fmt.Sprintf("reader%03d", p.made), AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true,
	})
	if err != nil {
		p.Fatal(err)
	}
	in, err := deliver(cons, pullMessages, bytes, nil)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(in.close)
	return cons, in
}

// take takes n records and returns their sizes, as the server counts them, and how often a
// heartbeat was missed meanwhile.
func (p *pulled) take(in *deliveries, n int) (sizes []int, missed int) {
	p.Helper()
	for len(sizes) < n {
		select {
		case <-in.ready:
			for _, m := range in.take(nil, n-len(sizes)) {
				sizes = append(sizes, len(m.Subject())+len(m.Reply())+len(m.Data()))
			}
		case err := <-in.fault:
			if !errors.Is(err, jetstream.ErrNoHeartbeat) {
				p.Fatal(err)
			}
			missed++
		}
	}
	return sizes, missed
}

// requests are those that are sent for a consumer of the next name.
func (p *pulled) requests() *nats.Subscription {
	p.Helper()
	sub, err := p.c.NATS.SubscribeSync(fmt.Sprintf("%sCONSUMER.MSG.NEXT.%s.reader%03d", jetstream.DefaultAPIPrefix, pulledStream, p.made+1))
	if err != nil {
		p.Fatal(err)
	}
	return sub
}

// The server says nothing of a request that ends because its bytes were used to the last one. A
// reader that waited for the messages that it was also for would stand still until a heartbeat is
// missed.
func TestARequestWhoseBytesAreUsedToTheLastIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	p := newPulled(t)
	_, in := p.from(1 << 20)
	sizes, _ := p.take(in, pulledRecords)
	for _, first := range []int{100, 120, 150, 200} {
		most := 0
		for _, size := range sizes[:first] {
			most += size
		}
		requests := p.requests()
		cons, in := p.from(most) // which nobody takes from, so that the library requests no more
		for over := false; !over; {
			info, err := cons.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			over = info.NumWaiting == 0 && info.Delivered.Consumer == uint64(first)
			if !over && info.NumWaiting == 0 && info.Delivered.Consumer > 0 {
				t.Fatalf("of the first request %d records came, want %d: its bytes are not used to the last", info.Delivered.Consumer, first)
			}
		}
		_, missed := p.take(in, first+1)
		// Each missed heartbeat made a request: on a busy machine there are some of either.
		if n, _, err := requests.Pending(); err != nil || n-missed < 2 {
			t.Errorf("%d requests and %d missed heartbeats up to record %d, %v; want a request before the first one's records were used up", n, missed, first+1, err)
		}
		p.take(in, pulledRecords-first-1)
	}
}

// Some takeovers met a server that had a record to send, and sent nothing before the request for it
// ended.
func TestARequestEndsAfterTwoSecondsAndHasRoomForTheLargestRecord(t *testing.T) {
	t.Parallel()
	p := newPulled(t)
	requests := make(chan *nats.Msg, 64)
	if _, err := p.c.NATS.ChanSubscribe(jetstream.DefaultAPIPrefix+"CONSUMER.MSG.NEXT.>", requests); err != nil {
		t.Fatal(err)
	}
	const largest = 8 << 20
	_, in := p.from(pullBytes(1, largest))
	p.take(in, pulledRecords)
	for range 2 { // the second once the first has ended
		select {
		case m := <-requests:
			var got struct {
				Bytes   int           `json:"max_bytes"`
				Expires time.Duration `json:"expires"`
			}
			if err := json.Unmarshal(m.Data, &got); err != nil {
				t.Fatal(err)
			}
			if got.Expires != 2*time.Second || got.Bytes < largest {
				t.Errorf("a request for %d bytes that ends after %v, want %d or more and 2s", got.Bytes, got.Expires, largest)
			}
		case <-time.After(time.Minute):
			t.Fatal("no request")
		}
	}
}

func TestPullBytesHoldTheLargestRecordAndFitIntoTheLibrarysQueue(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ want, largest, got int }{
		{16 << 20, 1 << 20, 16 << 20},
		{16 << 20, 8 << 20, 16 << 20},
		{1, 8 << 20, 16 << 20},
		{16 << 20, 40 << 20, 64 << 20},
		{1 << 30, 8 << 20, 64 << 20},
		{16 << 20, 64 << 20, 64<<20 + link.HeaderRoom},
	} {
		if got := pullBytes(row.want, row.largest); got != row.got {
			t.Errorf("pullBytes(%d, %d) = %d, want %d", row.want, row.largest, got, row.got)
		}
	}
}

func TestAMissedHeartbeatHidesNoOtherFault(t *testing.T) {
	t.Parallel()
	for _, faults := range [][]error{
		{jetstream.ErrNoHeartbeat, jetstream.ErrConsumerDeleted},
		{jetstream.ErrConsumerDeleted, jetstream.ErrNoHeartbeat},
	} {
		d := &deliveries{fault: make(chan error, 1)}
		for _, err := range faults {
			d.fail(err)
		}
		if got := <-d.fault; !errors.Is(got, jetstream.ErrConsumerDeleted) {
			t.Errorf("of %v: %v", faults, got)
		}
	}
}
