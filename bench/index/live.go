package index

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// live publishes deltas and notes when one kind of reader has each. Readers take
// turns, so that none of them disturbs another; each has a connection of its own.
type live struct {
	*system.DeltaSource

	nats   string
	reader *stream.Conn
	core   *nats.Conn // publishes without a log
}

// VisibleServer is the servant that publishes deltas and sees them arrive.
func VisibleServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg visibleConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS})
	if err != nil {
		return nil, err
	}
	l := &live{nats: cfg.NATS}
	stop := func() error {
		conn.Close()
		if l.reader != nil {
			l.reader.Close()
		}
		if l.core != nil {
			l.core.Close()
		}
		return nil
	}
	if l.reader, err = stream.Connect(ctx, stream.Config{URL: cfg.NATS}); err == nil {
		l.core, err = nats.Connect(cfg.NATS)
	}
	if err == nil {
		l.DeltaSource, err = system.NewDeltaSource(ctx, conn, cfg.Index, cfg.IndexServerConfig)
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	s := l.Servant(stop)
	s.Ops["run"] = func(ctx context.Context, args json.RawMessage) (any, error) {
		var a liveArgs
		if err := json.Unmarshal(args, &a); err != nil {
			return nil, err
		}
		return l.run(ctx, a)
	}
	return s, nil
}

// liveArgs is a turn: for how long, and who reads: watch, get, log or core.
type liveArgs struct {
	Reader string        `json:"reader"`
	For    time.Duration `json:"for"`
}

// passage is when each delta of a turn was sent, stored and seen, in nanoseconds
// of the wall clock; 0 is never.
type passage struct {
	first              int // resource version of the first delta
	sent, stored, seen []int64
	next               atomic.Int64 // the delta to be seen next
	all                chan struct{}
}

// see notes that a reader has a version now. Versions of other turns are nothing;
// one that is lost or out of order fails.
func (p *passage) see(rv string) error {
	n, err := strconv.Atoi(rv)
	if err != nil || n < p.first {
		return err
	}
	at := int(p.next.Load())
	if n != p.first+at {
		return fmt.Errorf("resource version %d follows %d: lost or out of order", n, p.first+at-1)
	}
	p.seen[at] = time.Now().UnixNano()
	if p.next.Store(int64(at + 1)); at+1 == len(p.seen) {
		close(p.all)
	}
	return nil
}

// run publishes for a while and returns quantiles in milliseconds.
func (l *live) run(ctx context.Context, a liveArgs) (map[string]float64, error) {
	n := int(a.For.Seconds() * system.DeltasPerSecond)
	if n > len(l.Records) {
		return nil, fmt.Errorf("%d deltas of %d pods: the log keeps only the last of each", n, len(l.Records))
	}
	p := &passage{first: l.RV + 1, sent: make([]int64, n), stored: make([]int64, n), seen: make([]int64, n), all: make(chan struct{})}
	reading, stop := context.WithCancel(ctx)
	defer stop()
	g, reading := errgroup.WithContext(reading)
	ready := make(chan struct{})
	send := func(ctx context.Context, r delta.Record) error { return l.Writer.Append(ctx, []delta.Record{r}) }
	polls := make(chan int, 64)
	read := map[string]func(context.Context, *passage, func()) error{
		"watch": l.watch, "log": l.readLog, "core": l.readCore,
		"get": func(ctx context.Context, p *passage, ready func()) error { ready(); return l.poll(ctx, p, polls) },
	}[a.Reader]
	if read == nil {
		return nil, fmt.Errorf("unknown reader %q", a.Reader)
	}
	if a.Reader == "core" {
		send = func(_ context.Context, r delta.Record) error {
			return l.core.PublishMsg(&nats.Msg{Subject: coreSubject, Header: r.Header(), Data: r.Payload})
		}
	}
	g.Go(func() error { return read(reading, p, func() { close(ready) }) })
	g.Go(func() error {
		defer stop()
		select {
		case <-ready:
		case <-reading.Done():
			return reading.Err()
		}
		if err := l.publishAll(reading, p, send, polls); err != nil {
			return err
		}
		if a.Reader == "get" {
			return nil
		}
		select {
		case <-p.all:
			return nil
		case <-time.After(10 * time.Second):
			return fmt.Errorf("of %d deltas %d were seen", n, p.next.Load())
		case <-reading.Done():
			return reading.Err()
		}
	})
	err := g.Wait()
	if a.Reader != "core" {
		l.RV += n
	}
	if err != nil {
		return nil, err
	}
	got := map[string]float64{"published": float64(n)}
	got["sent-seen-p50"], got["sent-seen-p99"] = harness.Latencies(p.sent, p.seen)
	if a.Reader == "core" {
		return got, nil
	}
	if err := l.storedAt(ctx, p); err != nil {
		return nil, err
	}
	got["sent-stored-p50"], got["sent-stored-p99"] = harness.Latencies(p.sent, p.stored)
	got["stored-seen-p50"], got["stored-seen-p99"] = harness.Latencies(p.stored, p.seen)
	return got, nil
}

// coreSubject carries deltas past the log.
const coreSubject = "bench.core"

// publishAll keeps to the schedule as an open loop does. A delta that is late
// because the log was slow is stamped with the time it was due; one that is late
// because this goroutine woke late, with the time it was handed over.
func (l *live) publishAll(ctx context.Context, p *passage, send func(context.Context, delta.Record) error, polls chan<- int) error {
	defer close(polls)
	const interval = time.Second / system.DeltasPerSecond
	start := time.Now()
	free := start // when the log had taken the last one
	for i := range p.sent {
		due := start.Add(time.Duration(i) * interval)
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		at := (p.first + i) % len(l.Records)
		r := system.Revised(l.Records[at], strconv.Itoa(p.first+i))
		stamp := due
		if !free.After(due) {
			stamp = time.Now()
		}
		p.sent[i] = stamp.UnixNano()
		if err := send(ctx, r); err != nil {
			return err
		}
		free = time.Now()
		l.Records[at] = r
		if i%(system.DeltasPerSecond/20) == 0 {
			select {
			case polls <- i:
			default: // the poller is busy: this one is not sampled
			}
		}
	}
	return nil
}

// storedAt finds when the log stored each delta: it says so beside the record.
// Log and publisher read the clock of one machine.
func (l *live) storedAt(ctx context.Context, p *passage) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	found := 0
	err := l.reader.Read(ctx, population.PodsCollection, stream.ReadConfig{HeadersOnly: true}, func(_ context.Context, b delta.Batch) error {
		for i := range b.Records {
			if n, err := strconv.Atoi(b.Records[i].RV); err == nil && b.Records[i].Kind == delta.KindDelta && n >= p.first {
				p.stored[n-p.first] = b.Records[i].StoredAt.UnixNano()
				found++
			}
		}
		if b.Replayed {
			cancel()
		}
		return nil
	})
	if err == nil && found != len(p.stored) {
		err = fmt.Errorf("the log holds %d of %d deltas", found, len(p.stored))
	}
	return err
}

// readLog is the bare log reader.
func (l *live) readLog(ctx context.Context, p *passage, ready func()) error {
	return l.reader.Read(ctx, population.PodsCollection, stream.ReadConfig{}, func(_ context.Context, b delta.Batch) error {
		for i := range b.Records {
			if r := &b.Records[i]; r.Kind == delta.KindDelta {
				if err := p.see(r.RV); err != nil {
					return fmt.Errorf("log: %w", err)
				}
			}
		}
		if b.Replayed {
			ready()
		}
		return nil
	})
}

// readCore subscribes to what is published without a log.
func (l *live) readCore(ctx context.Context, p *passage, ready func()) error {
	conn, err := nats.Connect(l.nats)
	if err != nil {
		return err
	}
	defer conn.Close()
	messages := make(chan *nats.Msg, 1024)
	if _, err := conn.ChanSubscribe(coreSubject, messages); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return err
	}
	ready()
	for n := p.first; ; n++ {
		select {
		case <-messages:
		case <-ctx.Done():
			return nil
		}
		if err := p.see(strconv.Itoa(n)); err != nil {
			return err
		}
	}
}

// watch is a client of the index that watches.
func (l *live) watch(ctx context.Context, p *passage, ready func()) error {
	return system.WatchChanges(ctx, l.Conns[0], ready, p.see)
}

// poll asks for sampled keys until their new version is there.
func (l *live) poll(ctx context.Context, p *passage, samples <-chan int) error {
	client := indexv1.NewIndexServiceClient(l.Conns[1])
	for at := range samples {
		want := p.first + at
		key := string(l.Records[want%len(l.Records)].Key)
		for {
			got, err := client.Get(ctx, system.GetRequest(key))
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			rv, err := strconv.Atoi(got.GetObject().GetResourceVersion())
			if err != nil {
				return err
			}
			if rv >= want {
				p.seen[at] = time.Now().UnixNano()
				break
			}
		}
	}
	return nil
}
