package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// attack is something that a stranger does again and again, each time on a connection of its own.
type attack struct {
	Name string
	// strangers do it at a time, with a pause after each time.
	strangers int
	pause     time.Duration
	do        func(ctx context.Context, s *stranger) error
}

// Attacks are what [Attack] does.
var Attacks = []attack{
	{"connections that say nothing", 200, 20 * time.Millisecond, func(ctx context.Context, s *stranger) error { return s.silence(ctx) }},
	{"handshakes that are not finished", 20, 20 * time.Millisecond, func(_ context.Context, s *stranger) error { return s.cutHandshake() }},
	{"compressed messages without a name", 4, 5 * time.Millisecond, func(_ context.Context, s *stranger) error { return s.compressed() }},
	{"headers without an end", 4, 5 * time.Millisecond, func(_ context.Context, s *stranger) error { return s.headers() }},
	{"streams that are reset at once", 4, 5 * time.Millisecond, func(_ context.Context, s *stranger) error { return s.resets() }},
	{"answers that nobody reads", 50, 20 * time.Millisecond, func(ctx context.Context, s *stranger) error { return s.slowReads(ctx) }},
}

// Attack has strangers do everything at a time until ctx ends, from a host of their own. It counts
// how often each was done.
func Attack(ctx context.Context, addr string) []int64 {
	counts := make([]atomic.Int64, len(Attacks))
	var all sync.WaitGroup
	for i, a := range Attacks {
		for range a.strangers {
			all.Go(func() {
				for ctx.Err() == nil {
					s, err := meet(ctx, addr)
					if err == nil {
						if a.do(ctx, s) == nil {
							counts[i].Add(1)
						}
						s.close()
					}
					select {
					case <-ctx.Done():
					case <-time.After(a.pause):
					}
				}
			})
		}
	}
	all.Wait()
	out := make([]int64, len(Attacks))
	for i := range counts {
		out[i] = counts[i].Load()
	}
	return out
}

// stranger is a connection of somebody without a name.
type stranger struct {
	raw  net.Conn
	conn net.Conn // with TLS, where there is some
	f    *http2.Framer
	text bytes.Buffer
	enc  *hpack.Encoder
}

// strangerTimeout bounds what a stranger does, and how long one holds still.
const strangerTimeout = 5 * time.Second

// strangersHost is not that of the callers who are known: hosts are limited each.
var strangersHost = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}

func meet(ctx context.Context, addr string) (*stranger, error) {
	raw, err := (&net.Dialer{LocalAddr: strangersHost, Timeout: strangerTimeout}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &stranger{raw: raw, conn: raw}
	s.enc = hpack.NewEncoder(&s.text)
	return s, raw.SetDeadline(time.Now().Add(strangerTimeout))
}

func (s *stranger) close() { _ = s.raw.Close() }

// silence holds a connection until the server gives it up.
func (s *stranger) silence(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	_, _ = io.Copy(io.Discard, s.raw) // the server ends it, or the caller
	return nil
}

// cutHandshake begins one and goes away.
func (s *stranger) cutHandshake() error {
	_, err := s.raw.Write([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))
	return err
}

// open comes as far as HTTP/2.
func (s *stranger) open(settings ...http2.Setting) error {
	if ServerTLS().CertFile != "" {
		s.conn = tls.Client(s.raw, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // it trusts anybody
	}
	if _, err := io.WriteString(s.conn, http2.ClientPreface); err != nil {
		return err
	}
	s.f = http2.NewFramer(s.conn, s.conn)
	return s.f.WriteSettings(settings...)
}

// begin begins a call on a stream, with more headers.
func (s *stranger) begin(stream uint32, more ...hpack.HeaderField) error {
	s.text.Reset()
	for _, h := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: indexv1.IndexService_Watch_FullMethodName},
		{Name: ":authority", Value: "index"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...) {
		if err := s.enc.WriteField(h); err != nil {
			return err
		}
	}
	return s.f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: s.text.Bytes(), EndHeaders: true})
}

// compressed sends messages that say of themselves that they are compressed, and long.
func (s *stranger) compressed() error {
	err := s.open()
	message := append([]byte{1, 0, 0xff, 0xff, 0xff}, make([]byte, 8<<10)...)
	for stream := uint32(1); err == nil && stream < 40; stream += 2 {
		if err = s.begin(stream, hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"}); err == nil {
			err = s.f.WriteData(stream, true, message)
		}
	}
	return sent(err)
}

// headers sends many large ones, in pieces without an end.
func (s *stranger) headers() error {
	err := s.open()
	if err == nil {
		s.text.Reset()
		_ = s.enc.WriteField(hpack.HeaderField{Name: ":method", Value: "POST"}) // a buffer takes it
		err = s.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.text.Bytes()})
	}
	for i := 0; err == nil && i < 200; i++ {
		s.text.Reset()
		_ = s.enc.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 12<<10), Sensitive: true})
		err = s.f.WriteContinuation(1, false, s.text.Bytes())
	}
	return sent(err)
}

// resets begins calls and resets each at once.
func (s *stranger) resets() error {
	err := s.open()
	for stream := uint32(1); err == nil && stream < 2000; stream += 2 {
		if err = s.begin(stream); err == nil {
			err = s.f.WriteRSTStream(stream, http2.ErrCodeCancel)
		}
	}
	return sent(err)
}

// slowReads asks for much, with no room for the answers, and reads nothing.
func (s *stranger) slowReads(ctx context.Context) error {
	err := s.open(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for stream := uint32(1); err == nil && stream < 200; stream += 2 {
		if err = s.begin(stream); err == nil {
			err = s.f.WriteData(stream, true, make([]byte, 5))
		}
	}
	for i := 0; err == nil && i < 50; i++ {
		err = s.f.WritePing(false, [8]byte{byte(i)})
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	return sent(err)
}

// sent leaves out that the server has closed the connection: it may.
func sent(err error) error {
	if _, ok := err.(*net.OpError); ok { //nolint:errorlint // what net returns
		return nil
	}
	return err
}
