package stream

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// pulls is a stream of records of random sizes, and one random reader of it after another.
type pulls struct {
	*testing.T
	*rand.Rand
	c       *Conn
	stream  string
	sizes   []int // of the records, as the server counts them
	heads   []int // the same without payloads
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
	if _, err := p.c.js.CreateStream(p.Context(), jetstream.StreamConfig{Name: p.stream, Subjects: []string{p.stream}, Storage: jetstream.MemoryStorage}); err != nil {
		p.Fatal(err)
	}
	p.sizes, p.largest = make([]int, 100+p.IntN(300)), 0
	p.heads = make([]int, len(p.sizes))
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
		p.heads[i] = around + len(fmt.Sprintf("Nats-Msg-Size: %d\r\n", len(m.Data)))
		p.largest = max(p.largest, p.sizes[i])
		if _, err := p.c.js.PublishMsgAsync(m); err != nil {
			p.Fatal(err)
		}
	}
	<-p.c.js.PublishAsyncComplete()
}

// read is one reader, with random bounds and pauses.
func (p *pulls) read() {
	p.Helper()
	p.made++
	headersOnly, sizes, largest := p.IntN(5) == 0, p.sizes, p.largest
	if headersOnly {
		sizes, largest = p.heads, 0
	}
	cons, err := p.c.js.CreateConsumer(p.Context(), p.stream, jetstream.ConsumerConfig{
		Name: fmt.Sprintf(pullsName, p.made), AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, HeadersOnly: headersOnly,
	})
	if err != nil {
		p.Fatal(err)
	}
	d := demand{messages: 1 << p.IntN(11), bytes: sizes[0] * (1 + p.IntN(100)), expires: pullExpires}
	if p.IntN(2) == 0 {
		d.bytes = leastPull << p.IntN(6)
	}
	if p.IntN(3) == 0 {
		d.expires = time.Duration(1+p.IntN(20)) * time.Millisecond
	}
	pause, tapped, few := p.IntN(4), p.IntN(4) > 0, 1+p.IntN(64)
	what := fmt.Sprintf("%d records up to %d bytes, headers only %v, %+v, pauses %d, tapped %v, %d gathered at a time", len(sizes), largest, headersOnly, d, pause, tapped, few)
	if !tapped { // as with TLS
		taps := p.c.taps
		p.c.taps = newTaps()
		defer func() { p.c.taps = taps }()
	}
	pull, err := p.c.puller(p.stream, cons.CachedInfo().Name, d)
	if err != nil {
		p.Fatal(err)
	}
	defer pull.close()
	most := max(d.bytes, leastPull)
	if largest > most {
		most = max(2*largest, most)
	}
	read := 0
	for read < len(sizes) {
		batch, err := pull.gather(nil, few)
		if err != nil {
			p.Fatalf("%s: %v", what, err)
		}
		for i := range batch {
			if got := batch[i].at; got.sequence != uint64(read+1) || got.delivery != uint64(read+1) {
				p.Fatalf("%s: record %d came as delivery %d, want %d", what, got.sequence, got.delivery, read+1)
			}
			if batch[i].size != sizes[read] {
				p.Fatalf("%s: record %d takes %d bytes, want %d", what, read+1, batch[i].size, sizes[read])
			}
			read++
		}
		if pull.most > most {
			p.Fatalf("%s: %d bytes are asked for at a time by now", what, pull.most)
		}
		if len(batch) > 0 && p.IntN(8) < pause {
			time.Sleep(time.Duration(p.IntN(3000)) * time.Microsecond)
			info, err := cons.Info(p.Context())
			if err != nil {
				p.Fatal(err)
			}
			ahead := 0
			for _, size := range sizes[read:info.Delivered.Consumer] {
				ahead += size
			}
			if ahead > most+3*leastPull {
				p.Fatalf("%s: %d bytes were sent ahead, %d are asked for at a time; %d messages and %d bytes are thought to be under way", what, ahead, most, pull.messages, pull.bytes)
			}
			if n := int(info.Delivered.Consumer) - read; n > 2*d.messages {
				p.Fatalf("%s: %d messages were sent ahead", what, n)
			}
		}
		if len(batch) > 0 || read == len(sizes) {
			continue
		}
		select {
		case <-pull.sink.wake:
		case m := <-pull.msgs:
			if err := pull.push(m); err != nil {
				p.Fatal(err)
			}
		case <-time.After(pullExpires + time.Second):
			info, _ := cons.Info(p.Context())
			p.Fatalf("%s: nothing comes behind %d: %d messages and %d bytes are thought to be under way, narrow %v, %d requests wait", what, read, pull.messages, pull.bytes, pull.narrow, info.NumWaiting)
		}
	}
	if err := p.c.js.DeleteConsumer(p.Context(), p.stream, cons.CachedInfo().Name); err != nil {
		p.Fatal(err)
	}
}

// A reader gets all there is in order, never stands still, and never has much more sent ahead than it asks for at a time.
func TestAReaderGetsEverythingAndNotTooMuchAtOnce(t *testing.T) {
	t.Parallel()
	c := connected(t, Config{})
	for i := range 2 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		p := &pulls{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), c: c, stream: fmt.Sprintf("pulls%02d", i)}
		p.fill()
		for range 8 {
			p.read()
		}
		if err := c.js.DeleteStream(t.Context(), p.stream); err != nil {
			t.Fatal(err)
		}
	}
}
