package deltalog

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

var pods = delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}

func TestReplicasOfATriggerShareTheLogAndGoOnWhereTheLastOneEnded(t *testing.T) {
	n := embeddedtest.NATS(t)
	appendPods := appender(t, n.InProcess())
	connect := func() *Conn {
		t.Helper()
		c, err := Connect(t.Context(), Config{Options: []nats.Option{n.InProcess()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	a, b := connect(), connect()
	cfg := client.TriggerConfig{Name: "dev/a", Primary: pods}
	appendPods("ns/one")
	keys := make(chan string)
	read := func(c *Conn) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- c.Log(cfg).Consume(ctx, func(ctx context.Context, batch client.Batch) error {
				for _, r := range batch.Records {
					if r.Kind == delta.KindDelta {
						if len(r.Payload) > 0 {
							t.Errorf("%s has a payload", r.Key)
						}
						select {
						case keys <- batch.Collection.String() + " " + string(r.Key):
						case <-ctx.Done():
							return ctx.Err()
						}
					}
				}
				return nil
			})
		}()
		return func() {
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	}
	stopA, stopB := read(a), read(b)
	if got := <-keys; got != "dev/pods.v1 ns/one" {
		t.Errorf("read %q", got)
	}
	appendPods("ns/two", "ns/three")
	seen := map[string]int{}
	for range 2 {
		seen[<-keys]++
	}
	if seen["dev/pods.v1 ns/two"] != 1 || seen["dev/pods.v1 ns/three"] != 1 {
		t.Errorf("replicas read %v", seen)
	}
	stopA()
	stopB()
	appendPods("ns/four")
	stop := read(b)
	for got := range keys { // what was read and not acknowledged comes again
		if got == "dev/pods.v1 ns/four" {
			break
		}
		if got == "dev/pods.v1 ns/one" {
			t.Errorf("%q is read again", got)
		}
	}
	stop()
}

func TestMemoryIsThatOfAllConnections(t *testing.T) {
	n := embeddedtest.NATS(t)
	var all []client.Memory
	for range 2 {
		c, err := Connect(t.Context(), Config{Options: []nats.Option{n.InProcess()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		if !c.Healthy() {
			t.Error("a connection that was just opened is not healthy")
		}
		all = append(all, c.Memory())
	}
	if got, err := all[0].Load(t.Context(), "a"); got != "" || err != nil {
		t.Errorf("Load of nothing = %q, %v", got, err)
	}
	if err := all[0].Save(t.Context(), "a", "g1"); err != nil {
		t.Fatal(err)
	}
	if got, err := all[1].Load(t.Context(), "a"); got != "g1" || err != nil {
		t.Errorf("Load = %q, %v; want what the other saved", got, err)
	}
}

func TestConnectNamesWhatItCannotReach(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := Connect(ctx, Config{URL: "nats://127.0.0.1:1"}); err == nil || !strings.HasPrefix(err.Error(), "deltalog: ") {
		t.Errorf("Connect() = %v", err)
	}
}

func TestConsumerNamesAreLegalAndDistinct(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"dev/job", "a.b/job", "a-b/job", "a_b/job", "ä/job", "a/b/job"} {
		consumer := consumerName(name)
		if other, ok := seen[consumer]; ok {
			t.Errorf("%q and %q are both called %q", name, other, consumer)
		}
		seen[consumer] = name
		if strings.ContainsAny(consumer, ". *>/\\") {
			t.Errorf("%q is not a legal name", consumer)
		}
	}
}

// appender returns a function that appends pods to their log.
func appender(t *testing.T, in nats.Option) func(keys ...string) {
	t.Helper()
	conn, err := stream.Connect(t.Context(), stream.Config{Options: []nats.Option{in}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	w, err := conn.Writer(t.Context(), pods, stream.WriterConfig{Term: 1, Holder: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	rv := delta.RV("10")
	return func(keys ...string) {
		t.Helper()
		for _, key := range keys {
			rv += "0"
			r := delta.Record{
				Kind: delta.KindDelta, Type: delta.Updated, Key: delta.Key(key), UID: "u-" + key, RV: rv, Watermark: rv,
				Encoding: delta.EncodingJSON, Payload: []byte(`{}`), Hash: delta.Hash([]byte(`{}`)),
			}
			if err := errors.Join(w.Append(t.Context(), []delta.Record{r}), w.Flush(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
	}
}
