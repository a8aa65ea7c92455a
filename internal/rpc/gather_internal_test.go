package rpc

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func always(int) bool { return true }

// frameOf is what the transport writes for a data frame, piece by piece.
func frameOf(pieces ...[]byte) [][]byte {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	return append([][]byte{{byte(n >> 16), byte(n >> 8), byte(n), dataFrame, 0, 0, 0, 0, 1}}, pieces...)
}

// randomPieces are frames of all kinds and lengths, cut as the transport cuts them.
func randomPieces(random *rand.Rand, frames int) (pieces [][]byte) {
	letters := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	for range frames {
		if random.IntN(3) == 0 { // headers, a ping or the like
			b := letters(frameHead + random.IntN(400))
			b[3] = 1 + byte(random.IntN(9))
			pieces = append(pieces, b)
			continue
		}
		var parts [][]byte
		for range random.IntN(5) {
			parts = append(parts, letters(1+random.IntN(4*LentFrom)))
		}
		pieces = append(pieces, frameOf(parts...)...)
	}
	return pieces
}

func TestWhatIsGatheredArrivesAsItWasWritten(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a history
		here, there := net.Pipe()
		if seed%2 == 0 {
			here, there = loopback(t)
		}
		g := newGatherer(here, func(int) bool { return seed%3 > 0 })
		pieces := randomPieces(random, 300)
		want := slices.Concat(pieces...)
		got := make(chan []byte, 1)
		go func() {
			b, err := io.ReadAll(there)
			if err != nil {
				t.Error(err)
			}
			got <- b
		}()
		large, rest := false, 0
		for _, p := range pieces {
			if rest == 0 && p[3] == dataFrame {
				rest = int(p[0])<<16 | int(p[1])<<8 | int(p[2])
				large = rest >= LentIn
			} else if rest > 0 {
				rest -= len(p)
			} else {
				large = false
			}
			if n, err := g.Write(p); n != len(p) || err != nil {
				t.Fatalf("seed %d: Write = %d, %v", seed, n, err)
			}
			if !large || len(p) < LentFrom {
				clear(p) // it is the transport's to use again
			}
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if b := <-got; !bytes.Equal(b, want) {
			at := 0
			for at < min(len(b), len(want)) && b[at] == want[at] {
				at++
			}
			t.Errorf("seed %d: %d bytes arrived, want %d; they differ from byte %d on", seed, len(b), len(want), at)
		}
	}
}

func loopback(t *testing.T) (here, there net.Conn) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	if there, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", lis.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if here, err = lis.Accept(); err != nil {
		t.Fatal(err)
	}
	return here, there
}

// watched sees what is written to a connection, from where.
type watched struct {
	net.Conn

	mu    sync.Mutex
	spots map[*byte]bool
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.spots[unsafe.SliceData(p)] = true
	w.mu.Unlock()
	return w.Conn.Write(p)
}

type watchedListener struct {
	net.Listener
	conns chan *watched
}

func (l watchedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w := &watched{Conn: conn, spots: map[*byte]bool{}}
	l.conns <- w
	return w, nil
}

// inPieces is a codec that sends a text of its own in place of every answer.
type inPieces struct {
	encoding.CodecV2
	pieces [][]byte
}

func (c inPieces) Marshal(v any) (mem.BufferSlice, error) {
	if _, ok := v.(*emptypb.Empty); !ok {
		return c.CodecV2.Marshal(v)
	}
	n := 0
	for _, p := range c.pieces {
		n += len(p)
	}
	head := []byte{1<<3 | 2, byte(n) | 0x80, byte(n>>7) | 0x80, byte(n >> 14)}
	parts := mem.BufferSlice{mem.SliceBuffer(head)}
	for _, p := range c.pieces {
		parts = append(parts, mem.SliceBuffer(p))
	}
	return parts, nil
}

// gatheringServer serves test.Gather/Get until the test ends, on connections that gather. It returns a client and the server's
// ends of its connections.
func gatheringServer(t *testing.T, answer func(context.Context) any, extra ...grpc.ServerOption) (client *grpc.ClientConn, conns <-chan *watched) {
	t.Helper()
	srv, err := NewServer(ServerConfig{}, Options{Gather: always, Extra: extra})
	if err != nil {
		t.Fatal(err)
	}
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Gather", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Get", Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return answer(ctx), dec(&emptypb.Empty{})
		}}},
	}, nil)
	lis := bufconn.Listen(4 << 20)
	ends := make(chan *watched, 1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // the client is closed first
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, watchedListener{lis, ends}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	client, err = Dial("test.local", DialConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client, ends
}

// It would fail if the transport began to write in another way than it is known to.
func TestPiecesOfLargeAnswersAreWrittenFromWhereTheyAre(t *testing.T) {
	t.Parallel()
	codec := inPieces{encoding.GetCodecV2("proto"), [][]byte{
		bytes.Repeat([]byte("a"), 5000), bytes.Repeat([]byte("b"), 300), bytes.Repeat([]byte("c"), 5000), bytes.Repeat([]byte("d"), 5000), bytes.Repeat([]byte("e"), 20000),
	}}
	client, conns := gatheringServer(t, func(context.Context) any { return &emptypb.Empty{} }, grpc.ForceServerCodecV2(codec))
	got := &wrapperspb.StringValue{}
	if err := client.Invoke(t.Context(), "/test.Gather/Get", &emptypb.Empty{}, got); err != nil {
		t.Fatal(err)
	}
	if want := string(slices.Concat(codec.pieces...)); got.GetValue() != want {
		t.Errorf("the answer has %d bytes, want %d, or others", len(got.GetValue()), len(want))
	}
	conn := <-conns
	conn.mu.Lock()
	for _, p := range codec.pieces {
		there := false
		for at := range conn.spots {
			from := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
			there = there || from <= uintptr(unsafe.Pointer(at)) && uintptr(unsafe.Pointer(at)) < from+uintptr(len(p))
		}
		if want := len(p) >= LentFrom; there != want {
			t.Errorf("piece %.1q of %d bytes was written from where it is: %t, want %t", p, len(p), there, want)
		}
	}
	conn.mu.Unlock()
}

func TestWhatIsCompressedIsOfNoPool(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 300<<10)
	_, _ = crand.Read(noise)
	client, conns := gatheringServer(t, func(ctx context.Context) any {
		if err := grpc.SetSendCompressor(ctx, gzip.Name); err != nil {
			t.Error(err)
		}
		return wrapperspb.Bytes(noise)
	})
	got := &wrapperspb.BytesValue{}
	if err := client.Invoke(t.Context(), "/test.Gather/Get", &emptypb.Empty{}, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.GetValue(), noise) {
		t.Error("the answer is another one")
	}
	conn := <-conns
	conn.mu.Lock()
	for _, size := range []int{4 << 10, 16 << 10, 32 << 10, 64 << 10, 1 << 20} {
		for range 30 {
			b := *mem.DefaultBufferPool().Get(size)
			from := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
			for at := range conn.spots {
				if from <= uintptr(unsafe.Pointer(at)) && uintptr(unsafe.Pointer(at)) < from+uintptr(len(b)) {
					t.Errorf("a buffer of %d bytes was written from where it is, and given back", size)
				}
			}
		}
	}
	conn.mu.Unlock()
}

func TestAWriterWaitsForAReaderThatDoesNotRead(t *testing.T) {
	t.Parallel()
	for what, piece := range map[string]int{"copied": 1000, "lent": 8 << 10} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				g := newGatherer(here, always)
				written, ended := 0, make(chan error)
				if _, err := g.Write(make([]byte, 2*frameHead)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // so it waits for a write that is not its own
				go func() {
					for {
						for _, p := range frameOf(make([]byte, piece), make([]byte, piece)) {
							n, err := g.Write(p)
							if written += n; err != nil {
								ended <- err
								return
							}
						}
					}
				}()
				synctest.Wait()
				if most := mostGathered + 2*chunkSize; written > most || written == 0 {
					t.Errorf("%d bytes were taken for a reader that reads nothing, want at most %d", written, most)
				}
				if what == "copied" && written > 3*chunkSize {
					t.Errorf("%d bytes were copied for a reader that reads nothing", written)
				}
				began := time.Now()
				if err := g.Close(); err != nil || time.Since(began) > 0 {
					t.Errorf("Close = %v, after %v", err, time.Since(began))
				}
				if err := <-ended; err == nil || time.Since(began) > 0 {
					t.Errorf("the writer was told %v after %v", err, time.Since(began))
				}
				if _, err := here.Read(make([]byte, 1)); err == nil || time.Since(began) != lastWords {
					t.Errorf("the connection was closed after %v (%v), want %v", time.Since(began), err, lastWords)
				}
				_ = there.Close()
			})
		})
	}
}

func TestTheLastWordsAreWrittenBeforeAConnectionIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const goAway = "\x00\x00\x08\x07\x00\x00\x00\x00\x00abcdefgh"
		here, there := net.Pipe()
		g := newGatherer(here, always)
		got := make(chan string, 1)
		go func() {
			b, _ := io.ReadAll(there)
			got <- string(b)
		}()
		if _, err := g.Write([]byte(goAway)); err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if s := <-got; s != goAway {
			t.Errorf("got %q, want %q", s, goAway)
		}
		if _, err := g.Write([]byte(goAway)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a write after that: %v, want %v", err, net.ErrClosed)
		}
	})
}

func TestAnErrorOfTheConnectionComesBackByALaterWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		g := newGatherer(here, always)
		if err := there.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Write([]byte("anything")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := g.Write([]byte("anything")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("err = %v, want that of the write", err)
		}
		_ = g.Close()
	})
}

// lentBuffers counts the buffers that are out.
type lentBuffers struct {
	out  atomic.Int64
	gets atomic.Int64
}

func (p *lentBuffers) Get(n int) *[]byte {
	p.out.Add(1)
	p.gets.Add(1)
	b := make([]byte, n)
	return &b
}

func (p *lentBuffers) Put(*[]byte) { p.out.Add(-1) }

func TestAnIdleConnectionHoldsNoBuffer(t *testing.T) {
	t.Parallel()
	here, there := loopback(t)
	var conn any = newGatherer(here, always)
	reader, ok := conn.(interface {
		ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error)
	})
	if !ok {
		t.Skip("Linux only")
	}
	pool := &lentBuffers{}
	read := func() (string, error) {
		buf, n, err := reader.ReadOnReady(100, pool)
		if buf == nil {
			return "", err
		}
		defer pool.Put(buf)
		return string((*buf)[:n]), err
	}
	type result struct {
		text string
		err  error
	}
	results := make(chan result)
	go func() {
		for {
			text, err := read()
			results <- result{text, err}
			if err != nil {
				close(results)
				return
			}
		}
	}()
	for pool.gets.Load() == 0 || pool.out.Load() != 0 { // it has looked, and waits
		runtime.Gosched()
	}
	if _, err := there.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got := <-results; got.text != "hello" || got.err != nil {
		t.Errorf("read %q, %v", got.text, got.err)
	}
	if err := there.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-results; !errors.Is(got.err, io.EOF) {
		t.Errorf("at the end: %q, %v, want EOF", got.text, got.err)
	}
	<-results
	if err := here.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := read(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after closing: %q, %v", text, err)
	}
	if n := pool.out.Load(); n != 0 {
		t.Errorf("%d buffers were not given back", n)
	}
}

// FuzzGather writes anything, cut anywhere: what arrives is what was written, and
// short pieces may be used again at once.
func FuzzGather(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a corpus
	f.Add(slices.Concat(randomPieces(random, 20)...), uint64(7))
	f.Add(slices.Concat(frameOf(make([]byte, 20000))...), uint64(9))
	f.Add([]byte("\x00\x40\x00\x00\x00\x00\x00\x00\x01abc"), uint64(9))
	f.Fuzz(func(t *testing.T, data []byte, cuts uint64) {
		random := rand.New(rand.NewPCG(cuts, 1)) //nolint:gosec // a history
		here, there := net.Pipe()
		g := newGatherer(here, always)
		got := make(chan []byte, 1)
		go func() {
			b, _ := io.ReadAll(there)
			got <- b
		}()
		for rest := bytes.Clone(data); len(rest) > 0; {
			n := min(len(rest), 1+random.IntN([]int{frameHead, LentFrom, 4 * LentFrom}[random.IntN(3)]))
			p := bytes.Clone(rest[:n])
			rest = rest[n:]
			if _, err := g.Write(p); err != nil {
				t.Fatal(err)
			}
			if len(p) < LentFrom {
				clear(p)
			}
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if b := <-got; !bytes.Equal(b, data) {
			t.Errorf("%d bytes arrived, want the %d that were written", len(b), len(data))
		}
	})
}
