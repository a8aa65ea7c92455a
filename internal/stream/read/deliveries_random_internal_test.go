package read

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// pulls is a stream of records of random sizes, and one random reader of it after another.
type pulls struct {
	*testing.T
	*rand.Rand
	c       *link.Conn
	stream  string
	sizes   []int // of the records, as the server counts them
	largest int
	made    int
}

const (
	pullsHeader = "NATS/1.0\r\nSeq: 0001\r\n\r\n"
	pullsName   = "reader%04d"
)

// fill makes the stream. Sizes are often such that some of them are exactly what is asked for.
func (p *pulls) fill() {
	p.Helper()
	if _, err := p.c.JetStream.CreateStream(p.Context(), jetstream.StreamConfig{Name: p.stream, Subjects: []string{p.stream}, Storage: jetstream.MemoryStorage}); err != nil {
		p.Fatal(err)
	}
	p.sizes, p.largest = make([]int, 100+p.IntN(300)), 0
	unit, kind := 512<<p.IntN(6), p.IntN(4)
	for i := range p.sizes {
		size := 0
		switch {
		case kind == 0:
			size = unit
		case kind == 1:
			size = unit * (1 + p.IntN(4))
		case p.IntN(50) == 0:
			size = 300 << 10
		default:
			size = 200 + p.IntN(2*unit)
		}
		seq := strconv.Itoa(i + 1)
		around := len(p.stream) + len(fmt.Sprintf("$JS.ACK.%s."+pullsName+".1.%s.%s.%d.%d", p.stream, 0, seq, seq, time.Now().UnixNano(), len(p.sizes)-i-1)) + len(pullsHeader)
		m := nats.NewMsg(p.stream)
		m.Header["Seq"] = []string{fmt.Sprintf("%04d", i+1)}
		m.Data = make([]byte, max(size-around, 1))
		p.sizes[i] = len(m.Data) + around
		p.largest = max(p.largest, p.sizes[i])
		if _, err := p.c.JetStream.PublishMsgAsync(m); err != nil {
			p.Fatal(err)
		}
	}
	<-p.c.JetStream.PublishAsyncComplete()
}

// read is one reader, with random bounds and pauses.
func (p *pulls) read() {
	p.Helper()
	p.made++
	headersOnly := p.IntN(5) == 0
	cons, err := p.c.JetStream.CreateConsumer(p.Context(), p.stream, jetstream.ConsumerConfig{
		Name: fmt.Sprintf(pullsName, p.made), AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, HeadersOnly: headersOnly,
	})
	if err != nil {
		p.Fatal(err)
	}
	messages, bytes := 1<<p.IntN(11), max(p.sizes[0]*(1+p.IntN(100)), p.largest)
	if headersOnly {
		bytes = 0
	}
	pause, few := p.IntN(4), 1+p.IntN(64)
	what := fmt.Sprintf("%d records up to %d bytes, headers only %v, %d messages or %d bytes, pauses %d, %d taken at a time",
		len(p.sizes), p.largest, headersOnly, messages, bytes, pause, few)
	in, err := deliver(cons, messages, bytes, nil)
	if err != nil {
		p.Fatal(err)
	}
	defer in.close()
	read, missed := 0, false
	for read < len(p.sizes) {
		select {
		case <-in.ready:
		case err := <-in.fault:
			if !errors.Is(err, jetstream.ErrNoHeartbeat) {
				p.Fatalf("%s: %v", what, err)
			}
			missed = true // the machine is busy, and there may be twice as much
			continue
		case <-time.After(time.Minute):
			p.Fatalf("%s: nothing comes behind %d", what, read)
		}
		batch := in.take(nil, few)
		if len(batch) > few {
			p.Fatalf("%s: %d were taken", what, len(batch))
		}
		for _, m := range batch {
			read++
			meta, err := m.Metadata()
			if err != nil || meta.Sequence.Stream != uint64(read) || meta.Sequence.Consumer != uint64(read) {
				p.Fatalf("%s: record %+v came as delivery %d, %v", what, meta, read, err)
			}
			if size := len(m.Subject()) + len(m.Reply()) + len(pullsHeader) + len(m.Data()); !headersOnly && size != p.sizes[read-1] {
				p.Fatalf("%s: record %d takes %d bytes, want %d", what, read, size, p.sizes[read-1])
			}
		}
		if len(batch) == 0 || p.IntN(8) >= pause || missed {
			continue
		}
		time.Sleep(time.Duration(p.IntN(3000)) * time.Microsecond)
		info, err := cons.Info(p.Context())
		if err != nil {
			p.Fatal(err)
		}
		ahead := 0
		for _, size := range p.sizes[read:info.Delivered.Consumer] {
			ahead += size
		}
		if most := bytes + bytes/8 + p.largest; !headersOnly && ahead > most {
			p.Fatalf("%s: %d bytes were sent ahead, want at most %d", what, ahead, most)
		}
		if n := int(info.Delivered.Consumer) - read; headersOnly && n > 2*messages {
			p.Fatalf("%s: %d messages were sent ahead", what, n)
		}
	}
	if err := p.c.JetStream.DeleteConsumer(p.Context(), p.stream, cons.CachedInfo().Name); err != nil {
		p.Fatal(err)
	}
}

// A reader gets all there is in order, never stands still, and never has much more sent ahead than
// it asks for at a time.
func TestAReaderGetsEverythingAndNotTooMuchAtOnce(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{})
	for i := range 2 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		p := &pulls{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), c: c, stream: fmt.Sprintf("pulls%02d", i)}
		p.fill()
		for range 8 {
			p.read()
		}
		if err := c.JetStream.DeleteStream(t.Context(), p.stream); err != nil {
			t.Fatal(err)
		}
	}
}
