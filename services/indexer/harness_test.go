package indexer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*Server).Start.func1"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/sysmem.init"),
		// Of a stream that was requested while the server stopped.
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run"), // idle, of a real API server
	)
}

var pods = delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}

// world is a real log with a writer, and any number of indexers on it.
type world struct {
	dial func() (*stream.Conn, error)
	conn *stream.Conn
	w    *stream.Writer
	term uint64
	rv   int

	scope delta.Scope // in synced records
	names []string    // likewise
	// dropped is what its synced records say that objects lack.
	dropped []string
	all     bool // its synced records say that every object is here
}

func newWorld(t testing.TB) *world {
	t.Helper()
	n := embeddedtest.NATS(t)
	w := &world{dial: func() (*stream.Conn, error) {
		return stream.Connect(t.Context(), stream.Config{Options: []nats.Option{n.InProcess()}, TombstoneTTL: time.Minute})
	}}
	w.conn = w.connect(t)
	return w
}

func (w *world) connect(t testing.TB) *stream.Conn {
	t.Helper()
	conn, err := w.dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// lead opens a writer on a collection with the next term.
func (w *world) lead(t testing.TB, c delta.Collection, newEpoch bool) *stream.Writer {
	t.Helper()
	var writer *stream.Writer
	answered(t, func() (err error) {
		w.term++
		writer, err = w.conn.Writer(t.Context(), c, stream.WriterConfig{Term: w.term, Holder: "test", NewEpoch: newEpoch})
		return err
	})
	t.Cleanup(writer.Close)
	return writer
}

// answered repeats a call until a starved log server answers it, as services do.
func answered(t testing.TB, ask func() error) {
	t.Helper()
	var err error
	eventually(t, func() string {
		if err = ask(); errors.Is(err, stream.ErrUnavailable) {
			return err.Error()
		}
		return ""
	})
	if err != nil {
		t.Fatal(err)
	}
}

// start makes the log of pods with the objects, and syncs it.
func (w *world) start(t testing.TB, records ...delta.Record) {
	t.Helper()
	w.w = w.lead(t, pods, false)
	w.put(t, records...)
	w.sync(t)
}

// put appends records, each at the next resource version.
func (w *world) put(t testing.TB, records ...delta.Record) {
	t.Helper()
	write(t, w.w, w.stamp(records)...)
}

func (w *world) stamp(records []delta.Record) []delta.Record {
	for i := range records {
		w.rv++
		r := &records[i]
		r.RV, r.Watermark = strconv.Itoa(w.rv), strconv.Itoa(w.rv)
		if r.Payload != nil && r.Hash == 0 {
			r.Payload = []byte(strings.Replace(string(r.Payload), `"RV"`, strconv.Quote(r.RV), 1))
			r.Hash = delta.Hash(r.Payload)
		}
	}
	return records
}

func (w *world) sync(t testing.TB) {
	t.Helper()
	w.rv++
	write(t, w.w, delta.Record{Kind: delta.KindSynced, RV: strconv.Itoa(w.rv), Watermark: strconv.Itoa(w.rv), Scope: w.scope, Names: w.names, Dropped: w.dropped, All: w.all})
}

func write(t testing.TB, w *stream.Writer, records ...delta.Record) {
	t.Helper()
	if err := errors.Join(w.Append(t.Context(), records), w.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
}

type options struct {
	node, owner, phase string
	labels             string // a=b,c=d
	uid                string
	pad                int
}

// pod makes a record of a pod; RV is filled in by put.
func pod(key string, o options) delta.Record {
	ns, name, _ := strings.Cut(key, "/")
	var labels []string
	for l := range strings.SplitSeq(o.labels, ",") {
		if k, v, ok := strings.Cut(l, "="); ok {
			labels = append(labels, fmt.Sprintf("%q:%q", k, v))
		}
	}
	uid := o.uid
	if uid == "" {
		uid = "uid-" + key
	}
	owners := ""
	if o.owner != "" {
		owners = fmt.Sprintf(`,"ownerReferences":[{"kind":"Job","name":"j","uid":%q,"controller":true}]`, o.owner)
	}
	payload := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":"RV","labels":{%s}%s},"spec":{"nodeName":%q,"pad":%q},"status":{"phase":%q,"conditions":[{"type":"Ready","status":"True"},{"type":"Init","status":"False"}]}}`,
		name, ns, uid, strings.Join(labels, ","), owners, o.node, strings.Repeat("x", o.pad), o.phase)
	return delta.Record{
		Kind: delta.KindDelta, Key: delta.Key(key), UID: uid, Type: delta.Updated, Payload: payload, Encoding: delta.EncodingJSON,
	}
}

func gone(key string) delta.Record {
	return delta.Record{Kind: delta.KindDelta, Key: delta.Key(key), Type: delta.Deleted, DeleteReason: delta.Observed}
}

// replica is a running indexer with a client.
type replica struct {
	indexv1.IndexServiceClient
	svc  *indexer.Service
	tel  *telemetry.Telemetry
	stop func()
	addr string
	tls  rpc.TLSConfig // of its clients
	gone atomic.Bool   // its address may be another test's server's by now
}

func (w *world) index(t testing.TB, change func(*indexer.Config)) *replica {
	t.Helper()
	return w.indexOn(t, w.connect(t), change, io.Discard)
}

// deltaLog is what an indexer needs of the log.
type deltaLog interface {
	Collections(ctx context.Context) ([]delta.Collection, error)
	Read(ctx context.Context, col delta.Collection, cfg stream.ReadConfig, h stream.Handler) error
	Tail(ctx context.Context, col delta.Collection) (stream.Tail, error)
	TombstoneTTL() time.Duration
	Away() error
	Bucket(ctx context.Context, name string, ttl time.Duration) (*stream.Bucket, error)
}

// indexOn is index with a log of its own, and somewhere for its messages.
func (w *world) indexOn(t testing.TB, log deltaLog, change func(*indexer.Config), messages io.Writer) *replica {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "indexer", LogOutput: messages})
	if err != nil {
		t.Fatal(err)
	}
	cfg := indexer.Config{Admin: telemetry.AdminConfig{Listen: "off"}, DiscoverEvery: 20 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	svc, err := indexer.New(cfg, log, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	r := &replica{svc: svc, tel: tel}
	r.stop = func() {
		if !r.gone.Swap(true) {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run() = %v, want nil on a clean stop", err)
			}
		}
	}
	t.Cleanup(r.stop)
	addr, err := svc.Addr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.addr = addr
	r.tls.CAFile = cfg.RPC.TLS.CertFile // it signs itself
	r.IndexServiceClient = indexv1.NewIndexServiceClient(r.connect(t))
	return r
}

// caughtUp waits until the replica has applied all that was written.
func (w *world) caughtUp(t testing.TB, r *replica) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := r.WaitForRevision(ctx, &indexv1.WaitForRevisionRequest{Revisions: []*deltav1.CollectionRevision{{
			Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: w.w.Epoch(), ResourceVersion: strconv.Itoa(w.rv)},
		}}})
		if err == nil {
			return
		}
		// A busy machine may take longer than one wait.
		if reason := rpc.Reason(err); ctx.Err() != nil || !slices.Contains([]string{"COLLECTION_NOT_FOUND", "COLLECTION_NOT_SYNCED", "REVISION_NOT_REACHED"}, reason) {
			t.Fatalf("WaitForRevision: %v", err)
		}
		select { // the log is found within DiscoverEvery
		case <-ctx.Done():
			t.Fatal("the collection was not found")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func at(epoch uint64, rv int) *indexv1.Consistency {
	return &indexv1.Consistency{AtLeast: &deltav1.Revision{Epoch: epoch, ResourceVersion: strconv.Itoa(rv)}}
}

func keysOf(objects []*indexv1.Object) []string {
	var keys []string
	for _, o := range objects {
		keys = append(keys, o.GetKey())
	}
	return keys
}

func wantKeys(t testing.TB, what string, objects []*indexv1.Object, want ...string) {
	t.Helper()
	if got := keysOf(objects); !slices.Equal(got, want) {
		t.Errorf("%s = %q, want %q", what, got, want)
	}
}

// wantStatus checks code, reason and, if not empty, the field at fault.
func wantStatus(t testing.TB, what string, err error, code codes.Code, reason, field string) {
	t.Helper()
	if rpc.Code(err) != code || rpc.Reason(err) != reason {
		t.Errorf("%s: %v (%v %s), want %v %s", what, err, rpc.Code(err), rpc.Reason(err), code, reason)
		return
	}
	if field != "" {
		if _, ok := rpc.Violations(err)[field]; !ok {
			t.Errorf("%s: violations are %v, want one of %s", what, rpc.Violations(err), field)
		}
	}
}
