package stream_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// Several readers of one connection read everything, however the server is spoken to; also records
// larger than what is read at a time.
func TestReadersReadEverythingOverAnyTransport(t *testing.T) {
	t.Parallel()
	const objects, readers = 120, 3
	web := httptest.NewUnstartedServer(nil) // for its certificate
	web.StartTLS()
	defer web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	secure := nats.Secure(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	material := &tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12}
	for name, how := range map[string]struct {
		server  func(*server.Options)
		options []nats.Option
		web     string
	}{
		"plain":                      {},
		"tls after the introduction": {server: func(o *server.Options) { o.TLSConfig = material }, options: []nats.Option{secure}},
		"tls first": {
			server:  func(o *server.Options) { o.TLSConfig, o.TLSHandshakeFirst = material, true },
			options: []nats.Option{secure, nats.TLSHandshakeFirst()},
		},
		"websocket":          {web: "ws", server: func(o *server.Options) { o.Websocket.NoTLS = true }, options: []nats.Option{nats.Compression(true)}},
		"websocket over tls": {web: "wss", server: func(o *server.Options) { o.Websocket.TLSConfig = material }, options: []nats.Option{secure}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &server.Options{
				Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), MaxPayload: 9 << 20, NoSigs: true, NoLog: true,
			}
			if how.web != "" {
				o.Websocket.Host, o.Websocket.Port, o.Websocket.Compression = "127.0.0.1", server.RANDOM_PORT, true
			}
			if how.server != nil {
				how.server(o)
			}
			srv, err := server.NewServer(o)
			if err != nil {
				t.Fatal(err)
			}
			srv.Start()
			t.Cleanup(func() {
				srv.Shutdown()
				srv.WaitForShutdown()
			})
			if !srv.ReadyForConnections(20 * time.Second) {
				t.Fatal("nats did not become ready")
			}
			url := "nats://" + srv.Addr().String()
			if how.web != "" {
				url = fmt.Sprintf("%s://127.0.0.1:%d", how.web, o.Websocket.Port)
			}
			c := connect(t, url, func(cfg *stream.Config) { cfg.Options = how.options })
			var records []delta.Record
			want := map[delta.Key]uint64{}
			for i := range objects {
				r := pod(fmt.Sprintf("pod-%d", i), 1+i)
				size := 1 + i*50
				if i == objects/2 {
					size = 7 << 20
				}
				r.Payload = fmt.Appendf(nil, `{"pad":%q}`, strings.Repeat(string(rune('a'+i%26)), size))
				r.Hash = delta.Hash(r.Payload)
				want[r.Key] = r.Hash
				records = append(records, r)
			}
			put(t, write(t, c, stream.WriterConfig{Term: 1}), append(records, synced(objects+1))...)
			var all sync.WaitGroup
			for reader := range readers {
				all.Go(func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					got := 0
					err := c.Read(ctx, pods, stream.ReadConfig{MaxBatch: 1 + 50*reader}, func(_ context.Context, b delta.Batch) error {
						for i := range b.Records {
							if r := &b.Records[i]; r.Kind == delta.KindDelta {
								if got++; !r.Intact() || delta.Hash(r.Payload) != want[r.Key] {
									t.Errorf("%s is damaged", r.Key)
								}
							}
						}
						if b.Replayed {
							cancel()
						}
						return nil
					})
					if err != nil || got != objects {
						t.Errorf("a reader got %d objects, error %v; want %d", got, err, objects)
					}
				})
			}
			all.Wait()
		})
	}
}
