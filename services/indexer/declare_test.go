package indexer_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

const definitions = "deltaplane-indexes"

func TestALostBucketOfDefinitionsIsRecreatedWithWhatIsKnown(t *testing.T) {
	t.Parallel()
	n := embeddedtest.NATS(t)
	w := &world{dial: func() (*stream.Conn, error) {
		return stream.Connect(t.Context(), stream.Config{Options: []nats.Option{n.InProcess()}, TombstoneTTL: time.Minute})
	}}
	w.conn = w.connect(t)
	w.start(t, fleet()...)
	nc, err := nats.Connect("", n.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	lose := func() {
		t.Helper()
		if err := js.DeleteKeyValue(t.Context(), definitions); err != nil {
			t.Fatal(err)
		}
	}
	replicas := []*replica{w.index(t, nil), w.index(t, nil)}
	for _, r := range replicas {
		w.caughtUp(t, r)
	}
	a, b := replicas[0], replicas[1]
	a.add(t, "*/widgets.v1.example.com", byField("by-size", "spec.size"))
	var want []string
	for i := range 6 { // revisions that the next bucket does not have for long
		name := fmt.Sprint("old-", i)
		replicas[i%2].add(t, podsName, byField(name, "status.phase"))
		want = append(want, name)
	}
	all := func(when string) {
		t.Helper()
		for i, r := range replicas {
			for _, name := range want {
				eventually(t, func() string {
					if x := r.indexer(t, podsName, name); x.GetState() != ready {
						return fmt.Sprintf("%s, replica %d has %s = %v", when, i, name, x)
					}
					return ""
				})
			}
		}
	}
	all("before")
	declare := func(r *replica, name string) {
		t.Helper()
		x := r.add(t, podsName, byField(name, "spec.nodeName")) // fails on any error
		if x[0].GetState() != ready {
			t.Errorf("%s = %v, want it ready", name, x[0])
		}
		want = append(want, name)
	}
	lose()
	declare(a, "new-a") // nobody has noticed yet
	declare(b, "new-b") // another one has made the bucket
	all("after a call")
	lose()
	eventually(t, func() string { // nobody calls
		kv, err := js.KeyValue(t.Context(), definitions)
		if err != nil {
			return err.Error()
		}
		keys, err := kv.Keys(t.Context())
		if err != nil || len(keys) != 2 {
			return fmt.Sprintf("the bucket has %q, %v, want pods and widgets", keys, err)
		}
		return ""
	})
	if _, err := b.RemoveIndexers(t.Context(), &indexv1.RemoveIndexersRequest{Collection: podsName, Names: []string{"old-0"}}); err != nil {
		t.Fatal(err)
	}
	want = slices.DeleteFunc(want, func(name string) bool { return name == "old-0" })
	replicas = append(replicas, w.index(t, nil))
	w.caughtUp(t, replicas[2])
	all("in the end")
	for i, r := range replicas {
		eventually(t, func() string {
			if x := r.indexer(t, podsName, "old-0"); x != nil {
				return fmt.Sprintf("replica %d still has %v", i, x)
			}
			return ""
		})
	}
}
