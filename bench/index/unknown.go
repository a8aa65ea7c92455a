package index

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/internal/rpc"
	accessv1 "github.com/deltaplane/deltaplane/proto/deltaplane/access/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// bearerToken has the form of one that a cluster has made for Deltaplane, and no signature.
func bearerToken(name string) string {
	payload := fmt.Sprintf(`{"sub":%q,"aud":["deltaplane"],"exp":%d}`, name, time.Now().Add(24*time.Hour).Unix())
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".signed"
}

// reviewer stands for an API server that knows one token, lets its owner do everything, and has
// neither roles nor service accounts.
type reviewer struct {
	known   string
	reviews atomic.Int64 // of tokens
}

func (v *reviewer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer := map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"resourceVersion": "1"}, "items": []any{}}
	switch {
	case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
		v.reviews.Add(1)
		var in struct{ Spec struct{ Token string } }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer = map[string]any{"status": map[string]any{
			"authenticated": in.Spec.Token == v.known, "audiences": []string{"deltaplane"}, "user": map[string]any{"username": "system:serviceaccount:bench:reader"},
		}}
	case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
		answer = map[string]any{"status": map[string]any{"allowed": true}}
	case r.URL.Query().Has("watch"):
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // nothing happens
		return
	}
	_ = json.NewEncoder(w).Encode(answer) // who has gone does not hear it
}

// What one host may have reviewed of tokens that nobody knows: so many at once, and so many a
// second after that.
const unknownBurst, unknownRate = 20, 5

// indexUnknown measures what callers with tokens that nobody knows do to the cluster, and to a
// caller who is known. Run it with --tls.
func indexUnknown(ctx context.Context, b *harness.Bench) (err error) {
	r, err := publishInto(ctx, b, "unknown", system.SourceConfig{Objects: harness.Pick(b, 3000, 9990), Templates: harness.Pick(b, 500, 600)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	v := &reviewer{known: bearerToken("reader")}
	api := httptest.NewServer(v)
	defer api.Close()
	defer api.CloseClientConnections()
	who := system.ReplicaConfig{Cluster: api.URL, Token: b.PathIn("token"), NATS: r.nats, Collection: r.name, Tier: indexer.TierRaw}
	if err := os.WriteFile(who.Token, []byte(v.known), 0o600); err != nil {
		return err
	}
	x, err := system.SpawnReplica(ctx, b, harness.Place{}, who)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := x.Await(ctx, r.info.Objects); err != nil {
		return err
	}
	prober, err := b.Spawn(ctx, "prober", harness.Place{}, proberConfig{Addr: x.Addr, Values: r.info.Values, Token: who.Token}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, prober.Stop()) }()
	length := harness.Pick(b, 3*time.Second, time.Minute)
	quiet, err := probedDuring(ctx, prober, func(ctx context.Context) error { return harness.Sleep(ctx, length) })
	if err != nil {
		return err
	}
	before, sent, began := v.reviews.Load(), int64(0), time.Now()
	busy, err := probedDuring(ctx, prober, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, length)
		defer cancel()
		sent, err = unknownCallers(ctx, x.Addr)
		return err
	})
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	if sent == 0 {
		return errors.New("unknown: nobody has called")
	}
	// The known token is reviewed every 10 s, by each process that shows it.
	most := unknownBurst + unknownRate*took + took/10 + 3
	b.Add(harness.Alone(fmt.Sprintf("TokenReviews for %d calls with unknown tokens of one host in %.0f s", sent, took), "reviews", []float64{float64(v.reviews.Load() - before)}, harness.AtMost("ours", most)))
	ms := func(d time.Duration) []float64 { return []float64{d.Seconds() * 1e3} }
	b.Add(harness.Compare("ByIndex, 30 hits, of a known caller beside unknown tokens, p99", "ms", ms(busy.P99), "without them", ms(quiet.P99), harness.AtMost("ratio", 2)))
	return r.verify(ctx, x)
}

// unknownCallers call with a new token each time until ctx ends, 16 at a time from a host of their
// own, and count how often.
func unknownCallers(ctx context.Context, addr string) (int64, error) {
	conn, err := rpc.Dial(addr, rpc.DialConfig{TLS: load.ClientTLS(), Extra: []grpc.DialOption{
		grpc.WithDisableRetry(), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(ctx, "tcp", addr)
		}),
	}})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	client := accessv1.NewAccessServiceClient(conn)
	var sent, welcome atomic.Int64
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				token := bearerToken(fmt.Sprintf("unknown-%d-%d", worker, i))
				if _, err := client.WhoAmI(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), &accessv1.WhoAmIRequest{}); err == nil {
					welcome.Add(1)
				}
				sent.Add(1)
				_ = harness.Sleep(ctx, 5*time.Millisecond)
			}
		})
	}
	all.Wait()
	if n := welcome.Load(); n > 0 {
		return 0, fmt.Errorf("unknown: %d tokens that nobody knows were taken", n)
	}
	return sent.Load(), nil
}

// indexHandshakes measures the CPU that a new connection costs a server with TLS: a whole handshake
// each, without resumption, and one call, beside the call on a connection that is there. It needs
// --tls.
func indexHandshakes(ctx context.Context, b *harness.Bench) (err error) {
	if load.ServerTLS().CertFile == "" {
		b.Note("handshakes: there are none without --tls")
		return nil
	}
	r, err := publishInto(ctx, b, "handshakes", system.SourceConfig{Objects: 300, Templates: 100})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	x, err := r.replica(ctx, b, harness.Place{Pinned: true}, indexer.TierRaw)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := x.Await(ctx, r.info.Objects); err != nil {
		return err
	}
	one := harness.Pick(b, time.Second, 10*time.Second)
	connect := func(ctx context.Context, _ int) error {
		conn, err := load.Dial(x.Addr, 1)
		if err != nil {
			return err
		}
		_, err = indexv1.NewIndexServiceClient(conn[0]).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
		return errors.Join(err, conn.Close())
	}
	stay := func(ctx context.Context, caller int) error {
		_, err := indexv1.NewIndexServiceClient(x.Conns[caller%len(x.Conns)]).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
		return err
	}
	side := func(name string, call func(context.Context, int) error) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
			before, err := x.Usage()
			if err != nil {
				return nil, err
			}
			t, err := load.ClosedLoop(ctx, d, 4, call)
			if err != nil {
				return nil, err
			}
			after, err := x.Usage()
			return load.LoopNumbers(t, before, after), err
		}}
	}
	p := b.Plan("handshakes", 2, 5, one/5, one/5)
	t, err := harness.Interleave(ctx, b, p, side("connect", connect), side("stay", stay))
	if err != nil {
		return err
	}
	b.Add(harness.Compare("a connection with a TLS 1.3 handshake, P-256, and a call on it", "us of server CPU", t.Of("connect", "cpu"),
		"the call on a connection that is there", t.Of("stay", "cpu"), nil).With("p99", "us", t.Of("connect", "p99")))
	return nil
}
