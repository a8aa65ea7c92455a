package index

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// indexCallers measures what a server holds of each caller who has called: who it is, and what was
// decided about a get and a list. They share a connection, which is not theirs to account for.
func indexCallers(ctx context.Context, b *harness.Bench) (err error) {
	r, err := publishInto(ctx, b, "callers", system.SourceConfig{Objects: 300, Templates: 100})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	cfg, err := writeAccess(b)
	if err != nil {
		return err
	}
	n := harness.Pick(b, 1000, 10_000)
	token := func(i int) string { return fmt.Sprintf("caller-%06d-0123456789abcdef", i) }
	var tokens strings.Builder
	for i := range n {
		fmt.Fprintf(&tokens, "%s team-%d-robot-%d groups=readers\n", token(i), i%100, i)
	}
	tokens.WriteString("bench-0123456789abcdef reader groups=readers\n")
	if err := os.WriteFile(cfg.Tokens, []byte(tokens.String()), 0o600); err != nil {
		return err
	}
	cfg.NATS, cfg.Collection, cfg.Tier = r.nats, r.name, indexer.TierRaw
	x, err := system.SpawnReplica(ctx, b, harness.Place{}, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := x.Await(ctx, r.info.Objects); err != nil {
		return err
	}
	conns, err := load.Dial(x.Addr, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conns.Close()) }()
	client := indexv1.NewIndexServiceClient(conns[0])
	call := func(ctx context.Context, i int) error {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token(i))
		_, err := client.ByIndex(ctx, system.ByIndexRequest(r.info.Values[i%len(r.info.Values)]))
		if err == nil {
			_, err = client.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: r.name, Keys: []string{fmt.Sprintf("namespace-%d/none", i%100)}})
		}
		return err
	}
	if err := call(ctx, 0); err != nil { // what the first call makes is no caller's
		return err
	}
	var before, after harness.Heap
	if err := x.Call("heap", nil, &before); err != nil {
		return err
	}
	g, calling := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for i := 1; i < n; i++ {
		g.Go(func() error { return call(calling, i) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := x.Call("heap", nil, &after); err != nil {
		return err
	}
	each := func(after, before int64) []float64 { return []float64{float64(after-before) / float64(n-1)} }
	b.Add(harness.Alone(fmt.Sprintf("live heap per caller, %d of them, each with two decisions", n), "B", each(after.Live, before.Live), harness.AtMost("ours", 4096)).
		With("RSS", "B", each(after.RSS, before.RSS)))
	return nil
}
