package stream

import (
	"bytes"
	"maps"
	"net"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// A tap is a connection to the server from which the NATS library reads, and which takes out what is meant for our own readers: their messages
// and what the server says of their requests. The library would make a map of the headers of each message and copy it, which is more than all
// the rest of receiving it. Everything else passes through as it came, and so does everything where the bytes are not those of the plain
// protocol, as with TLS or websockets: then the readers get their messages from the library.
type tap struct {
	net.Conn
	taps  *taps
	chunk *chunk
	r, w  int // chunk.buf[r:w] was read and not passed on
	need  int // bytes of the operation at r, as far as it is known
	pass  int // bytes from r on that are the library's
	blind bool
	ready map[*sink][]message
}

const (
	// smallChunk is what is read at a time from a connection without readers, largeChunk from one with some.
	smallChunk, largeChunk = 32 << 10, 256 << 10
	// leastRead is the room that makes a read worth it.
	leastRead = 16 << 10
	// spareHeld is what a sink's messages may always hold of chunks that hold other messages too.
	spareHeld = 2 << 20
	// longestLine is more than any line of the protocol but the server's introduction, which comes first.
	longestLine = 64 << 10
)

// chunk is a part of what was received, of which messages are parts. It is used again when nobody uses it any more.
type chunk struct {
	buf   []byte
	users atomic.Int32 // messages that are not released, and the tap
}

var chunks = sync.Pool{New: func() any { return &chunk{buf: make([]byte, largeChunk)} }}

func newChunk(size int) *chunk {
	c := &chunk{}
	if size == largeChunk {
		c = chunks.Get().(*chunk)
	} else {
		c.buf = make([]byte, size)
	}
	c.users.Store(1)
	return c
}

// release says that a message, or the tap, does not use the chunk any more. One that is never released is left to the collector.
func (c *chunk) release() {
	if c != nil && c.users.Add(-1) == 0 && len(c.buf) == largeChunk {
		chunks.Put(c)
	}
}

// taps knows the readers of one [Conn], whose connections come and go.
type taps struct {
	mu    sync.Mutex
	sinks atomic.Pointer[map[string]*sink] // by the name of the consumer, and by the inbox
}

func newTaps() *taps {
	t := &taps{}
	t.sinks.Store(&map[string]*sink{})
	return t
}

func (t *taps) set(s *sink, names ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sinks := maps.Clone(*t.sinks.Load())
	for _, name := range names {
		if s == nil {
			delete(sinks, name)
		} else {
			sinks[name] = s
		}
	}
	t.sinks.Store(&sinks)
}

// option makes connections tapped, but not those that somebody else dials.
func (t *taps) option(o *nats.Options) error {
	own, ok := o.CustomDialer.(*stallDialer)
	if ok {
		o.CustomDialer = tappedDialer{t, own}
	}
	if o.InProcessServer != nil {
		if ok {
			o.InProcessServer = stallServer{own.timeout, o.InProcessServer}
		}
		o.InProcessServer = tappedServer{t, o.InProcessServer}
	}
	return nil
}

func (t *taps) wrap(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &tap{Conn: conn, taps: t, chunk: newChunk(smallChunk), ready: map[*sink][]message{}}, nil
}

type tappedDialer struct {
	taps   *taps
	dialer nats.CustomDialer
}

func (d tappedDialer) Dial(network, address string) (net.Conn, error) {
	return d.taps.wrap(d.dialer.Dial(network, address))
}

type tappedServer struct {
	taps   *taps
	server nats.InProcessConnProvider
}

func (s tappedServer) InProcessConn() (net.Conn, error) { return s.taps.wrap(s.server.InProcessConn()) }

// sink is where a reader finds its messages.
type sink struct {
	wake chan struct{} // holds one when there are messages

	mu     sync.Mutex
	queue  []message // what the server was asked for, so there is an end to it
	bytes  int       // of the messages in the queue
	held   int       // of the chunks that they are parts of
	last   *chunk
	closed bool
}

func newSink() *sink { return &sink{wake: make(chan struct{}, 1)} }

// put queues messages. A slow reader's would each hold on to a whole chunk when those of others came between them: they are copied then.
func (s *sink) put(msgs []message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range msgs {
		m := &msgs[i]
		if s.closed {
			m.chunk.release()
			continue
		}
		s.bytes += m.size
		if m.chunk != nil && m.chunk != s.last {
			if s.held+len(m.chunk.buf) > spareHeld+4*s.bytes {
				m.own()
			} else {
				s.last = m.chunk
				s.held += len(m.chunk.buf)
			}
		}
		s.queue = append(s.queue, *m)
	}
	s.rouse()
}

// own makes the message's payload a copy of what came.
func (m *message) own() {
	c := &chunk{buf: bytes.Clone(m.data)}
	c.users.Store(1)
	m.chunk.release()
	m.chunk, m.data = c, c.buf
}

// close forgets what is queued, and what is put later.
func (s *sink) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.queue {
		s.queue[i].chunk.release()
	}
	s.queue, s.last, s.closed = nil, nil, true
}

func (s *sink) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns what has come, for a list that is done with.
func (s *sink) take(done []message) []message {
	clear(done)
	s.mu.Lock()
	defer s.mu.Unlock()
	msgs := s.queue
	s.queue, s.bytes, s.held, s.last = again(done), 0, 0, nil
	return msgs
}

// again is an empty list with the room of another, unless most of that was not needed.
func again(list []message) []message {
	if cap(list) > 256 && len(list) < cap(list)/16 {
		return nil
	}
	return list[:0]
}

// Read gives the library what is its.
func (t *tap) Read(p []byte) (n int, err error) {
	for {
		for n < len(p) {
			if t.pass > 0 || t.blind {
				part := t.chunk.buf[t.r:t.w]
				if !t.blind {
					part = part[:min(len(part), t.pass)]
				}
				k := copy(p[n:], part)
				if k == 0 {
					break
				}
				n, t.r, t.pass = n+k, t.r+k, max(t.pass-k, 0)
			} else if !t.operation() {
				break
			}
		}
		t.deliver()
		switch {
		case n > 0 || len(p) == 0:
			return n, nil
		case t.blind:
			return t.Conn.Read(p)
		case t.pass > 0:
			n, err = t.Conn.Read(p[:min(len(p), t.pass)])
			t.pass -= n
			return n, err
		}
		if err = t.fill(); err != nil {
			return 0, err
		}
	}
}

// fill reads more of the operation at r.
func (t *tap) fill() error {
	if t.r == t.w && t.chunk.users.Load() == 1 {
		t.r, t.w = 0, 0
	}
	size := smallChunk
	if len(*t.taps.sinks.Load()) > 0 {
		size = largeChunk
	}
	if rest := t.chunk.buf[t.r:t.w]; len(t.chunk.buf)-t.r < max(t.need, len(rest)+leastRead) || len(rest) == 0 && len(t.chunk.buf) != size {
		if least := max(t.need, len(rest)+leastRead); size < least {
			size = least
		}
		c := newChunk(size)
		t.w = copy(c.buf, rest)
		t.r = 0
		t.chunk.release()
		t.chunk = c
	}
	n, err := t.Conn.Read(t.chunk.buf[t.w:])
	t.w += n
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// operation goes over one operation of the protocol: it takes it, or says that it is the library's. False is that more of it must be read.
func (t *tap) operation() bool {
	rest := t.chunk.buf[t.r:t.w]
	t.need = 0
	end := bytes.IndexByte(rest, '\n')
	line := rest
	if end >= 0 {
		line = bytes.TrimSuffix(rest[:end], []byte{'\r'})
	}
	kind, known := protocol(line, end >= 0)
	switch {
	case !known, end < 0 && len(rest) > longestLine:
		t.blind = true
		return true
	case end < 0:
		return false
	case kind == opOther:
		t.pass = end + 1
		return true
	}
	a, ok := parseArguments(line, kind == opHeaders)
	if !ok {
		t.blind = true // the library says what is wrong
		return true
	}
	whole := end + 1 + a.size + len("\r\n")
	s, at := t.find(&a)
	if s == nil {
		t.pass = whole
		return true
	}
	if len(rest) < whole {
		t.need = whole
		return false
	}
	body := rest[end+1 : end+1+a.size : end+1+a.size]
	t.r += whole
	m := message{subject: string(a.subject), at: at, size: a.size + len(a.subject) + len(a.reply)}
	if at.sequence == 0 {
		m.status = true
		m.fields, _ = nats.DecodeHeadersMsg(body[:a.headers])
	} else {
		m.header, m.data, m.chunk = string(body[:a.headers]), body[a.headers:], t.chunk
		t.chunk.users.Add(1)
	}
	t.ready[s] = append(t.ready[s], m)
	return true
}

// find is whose a message is; nil when it is the library's.
func (t *tap) find(a *arguments) (*sink, place) {
	sinks := *t.taps.sinks.Load()
	if len(sinks) == 0 {
		return nil, place{}
	}
	if consumer, at, ok := acked(a.reply); ok {
		return sinks[string(consumer)], at
	}
	return sinks[string(a.subject)], place{}
}

func (t *tap) deliver() {
	for s, msgs := range t.ready {
		if len(msgs) == 0 {
			continue // a reader must not take what others receive for a sign of its consumer
		}
		s.put(msgs)
		clear(msgs)
		t.ready[s] = msgs[:0]
	}
	if len(t.ready) > len(*t.taps.sinks.Load()) {
		clear(t.ready) // of readers that have gone
	}
}
