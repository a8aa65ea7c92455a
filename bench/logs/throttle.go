package logs

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// throttleChunk is how much passes a throttle at once; small, so that
// connections that share one get their turns.
const throttleChunk = 4 << 10

// throttle forwards connections to a server. What clients send passes at a
// limited rate, over all connections; what comes back is not held.
type throttle struct {
	addr   string
	lis    net.Listener
	limit  *rate.Limiter
	passed atomic.Int64 // bytes from clients
	cancel context.CancelFunc

	mu    sync.Mutex
	conns map[net.Conn]bool // nil once closed; guarded by mu
	group sync.WaitGroup
}

// newThrottle forwards to the host:port of a NATS URL, at first without a limit.
func newThrottle(ctx context.Context, url string) (*throttle, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &throttle{
		addr: lis.Addr().String(), lis: lis, limit: rate.NewLimiter(rate.Inf, throttleChunk), cancel: cancel, conns: map[net.Conn]bool{},
	}
	t.group.Go(func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(url, "nats://"))
			if err != nil {
				_ = in.Close() // the client tries again
				continue
			}
			if !t.keep(in, out) {
				return
			}
			t.group.Go(func() { t.up(ctx, in, out); t.drop(in, out) })
			t.group.Go(func() { _, _ = io.Copy(in, out); t.drop(in, out) })
		}
	})
	return t, nil
}

func (t *throttle) keep(conns ...net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range conns {
		if t.conns == nil {
			_ = c.Close()
			continue
		}
		t.conns[c] = true
	}
	return t.conns != nil
}

func (t *throttle) drop(conns ...net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(t.conns, c)
	}
}

// up copies what a client sends, as fast as it may.
func (t *throttle) up(ctx context.Context, in io.Reader, out io.Writer) {
	buf := make([]byte, throttleChunk)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if t.limit.WaitN(ctx, n) != nil {
				return
			}
			if _, werr := out.Write(buf[:n]); werr != nil {
				return
			}
			t.passed.Add(int64(n))
		}
		if err != nil {
			return
		}
	}
}

// setLimit changes the rate in bytes a second; 0 lifts it.
func (t *throttle) setLimit(bytes float64) {
	if bytes <= 0 {
		t.limit.SetLimit(rate.Inf)
		return
	}
	t.limit.SetLimit(rate.Limit(bytes))
}

func (t *throttle) close() error {
	t.cancel()
	err := t.lis.Close()
	t.mu.Lock()
	for c := range t.conns {
		err = errors.Join(err, ignoreClosed(c.Close()))
	}
	t.conns = nil
	t.mu.Unlock()
	t.group.Wait()
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
