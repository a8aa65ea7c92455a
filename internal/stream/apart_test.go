package stream_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// relay forwards connections to a NATS server; carry moves what goes towards it.
func relay(t testing.TB, url string, carry func(out io.Writer, in io.Reader)) string {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", strings.TrimPrefix(url, "nats://"))
			if err != nil {
				_ = in.Close()
				continue
			}
			wg.Go(func() {
				defer out.Close()
				carry(out, in)
			})
			wg.Go(func() {
				defer in.Close()
				_, _ = io.Copy(in, out)
			})
		}
	})
	t.Cleanup(func() {
		_ = lis.Close()
		wg.Wait()
	})
	return "nats://" + lis.Addr().String()
}

// clog forwards connections to a NATS server and holds what comes from each that has sent more than
// room bytes, until it is released.
func clog(t testing.TB, url string, room int64) (clogged string, release func()) {
	t.Helper()
	held := make(chan struct{})
	clogged = relay(t, url, func(out io.Writer, in io.Reader) {
		if _, err := io.CopyN(out, in, room); err == nil {
			<-held
			_, _ = io.Copy(out, in)
		}
	})
	return clogged, sync.OnceFunc(func() { close(held) })
}

func TestALeaseDoesNotWaitBehindTheAppendsOfASlowLog(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	url := embeddedtest.NATS(t).URL()
	clogged, release := clog(t, url, 1<<20)
	defer release()
	c := connect(t, clogged, nil)
	l := lease(t, c, stream.LeaseConfig{Holder: "slow", TTL: ttl})
	other := waiting(t, connect(t, url, nil), stream.LeaseConfig{Holder: "other", TTL: ttl, PingTimeout: ttl})
	w, err := c.Writer(t.Context(), pods, stream.WriterConfig{Term: l.Term, Holder: "slow"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	flood.Go(func() { // until it is set to end: one append waits for as long as the connection is held
		body := make([]byte, 100<<10)
		for ctx.Err() == nil {
			r := delta.Record{Kind: delta.KindDelta, Key: "default/p", Type: delta.Updated, RV: "1", Payload: body, Encoding: delta.EncodingJSON}
			if w.Append(ctx, []delta.Record{r}) != nil {
				return
			}
		}
	})
	select {
	case <-other:
		t.Error("another took the lease of one whose log is slow")
	case <-time.After(2 * ttl):
	}
	cancel()
	release()
	flood.Wait()
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if next := <-other; next != nil {
		_ = next.Release(t.Context())
	}
}
