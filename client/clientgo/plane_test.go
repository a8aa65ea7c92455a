package clientgo_test

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/services/indexer/servetest"
)

// plane is a real log and a real indexer.
type plane struct {
	conn  *stream.Conn
	index *client.Index
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	conn := servetest.Log(t)
	addr, _ := servetest.Serve(t, conn, nil)
	grpcConn, err := client.Dial(addr, client.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { grpcConn.Close() })
	return &plane{conn, client.NewIndex(grpcConn)}
}

// collection writes the log of one resource, as a reflector does.
type collection struct {
	w       *stream.Writer
	rv      int
	dropped []string                       // what the reflector leaves out
	status  func() client.CollectionStatus // on the index
}

// collection makes the log of a resource. The index follows it when this returns; it is synced once
// synced was called.
func (p *plane) collection(t *testing.T, cluster, resource string) *collection {
	t.Helper()
	c := delta.Collection{Cluster: cluster, Version: "v1", Resource: resource}
	w, err := p.conn.Writer(t.Context(), c, stream.WriterConfig{Term: 1, Holder: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	status := func() (found client.CollectionStatus) {
		all, err := p.index.Collections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.Cluster == cluster && s.Resource == resource {
				found = s
			}
		}
		return found
	}
	eventually(t, "the index follows "+c.String(), func() bool { return status().Collection != "" })
	return &collection{w: w, status: status}
}

func (c *collection) write(t *testing.T, r delta.Record) {
	t.Helper()
	r.Watermark = strconv.Itoa(c.rv)
	if err := errors.Join(c.w.Append(t.Context(), []delta.Record{r}), c.w.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func (c *collection) synced(t *testing.T) *collection {
	t.Helper()
	c.rv++
	c.write(t, delta.Record{Kind: delta.KindSynced, RV: strconv.Itoa(c.rv), Dropped: c.dropped})
	c.indexed(t)
	return c
}

// indexed waits until the index has what was written.
func (c *collection) indexed(t *testing.T) {
	t.Helper()
	eventually(t, "the index has what was written", func() bool { return c.status().Bounds.Revision.RV == strconv.Itoa(c.rv) })
}

// object is an object of Kubernetes.
type object interface {
	metav1.Object
	runtime.Object
}

// record makes the record of a change; the object has the next resource version.
func (c *collection) record(t *testing.T, o object, what delta.Type) delta.Record {
	t.Helper()
	c.rv++
	o.SetResourceVersion(strconv.Itoa(c.rv))
	if o.GetUID() == "" {
		o.SetUID(types.UID("uid of " + o.GetName()))
	}
	payload, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return delta.Record{
		Kind: delta.KindDelta, Key: delta.Key(strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")), UID: string(o.GetUID()), RV: o.GetResourceVersion(),
		Type: what, Payload: payload, Encoding: delta.EncodingJSON, Hash: delta.Hash(payload),
	}
}

// put writes an object; its kind and apiVersion must be set.
func (c *collection) put(t *testing.T, objects ...object) {
	t.Helper()
	for _, o := range objects {
		c.write(t, c.record(t, o, delta.Updated))
	}
	c.indexed(t)
}

// delete writes that an object was deleted, as it was then.
func (c *collection) delete(t *testing.T, o object) {
	t.Helper()
	r := c.record(t, o, delta.Deleted)
	r.DeleteReason = delta.Observed
	c.write(t, r)
}

// run runs an informer until the end of the test, and waits until it is synced.
func run(t *testing.T, i *clientgo.Informer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); i.RunWithContext(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	eventually(t, "the informer is synced", i.HasSynced)
}

var errAway = errors.New("the index is away")

// away is an index whose watches fail.
type away struct{ clientgo.Index }

func (away) Watch(context.Context, string, client.WatchOptions) iter.Seq2[client.Event, error] {
	return func(yield func(client.Event, error) bool) { yield(client.Event{}, errAway) }
}

// nowhere is a connection to an address where nobody listens.
func nowhere(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := client.Dial("127.0.0.1:1", client.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
