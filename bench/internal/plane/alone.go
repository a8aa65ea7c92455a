package plane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// planeAll is the servant for a whole plane in one process, connected as the parts of `deltaplane
// up` are: to the log within the process, to each other by sockets.
func planeAll(ctx context.Context, cfg PlaneConfig) (_ *harness.Servant, err error) {
	var stops []func() error
	stop := func() (err error) {
		for _, s := range slices.Backward(stops) {
			err = errors.Join(err, s())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: filepath.Join(cfg.Dir, "nats")})
	if err != nil {
		return nil, err
	}
	stops = append(stops, func() error { nats.Stop(); return nil })
	cfg.within = []stream.Option{nats.InProcess()}
	ops := map[string]harness.Op{}
	for _, p := range []struct {
		part  string
		start func(context.Context, PlaneConfig) (*harness.Servant, error)
		info  *string
	}{{"queue", planeQueue, &cfg.Queue}, {"indexer", planeIndexer, &cfg.Index}, {"reflector", planeReflector, nil}, {"controllers", planeControllers, nil}} {
		own := cfg
		own.Dir = filepath.Join(cfg.Dir, p.part)
		s, err := p.start(ctx, own)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.part, err)
		}
		stops = append(stops, s.Stop)
		if p.info != nil {
			*p.info, _ = s.Info.(string)
		}
		maps.Copy(ops, s.Ops)
	}
	return &harness.Servant{Ops: ops, Stop: stop}, nil
}

// StartAlone starts a plane in one process, with its controllers, beside a real API server, and
// waits until it is ready.
func StartAlone(ctx context.Context, b *harness.Bench, name string, cfg PlaneConfig) (*harness.Child, error) {
	cfg.Part, cfg.Dir = "all", filepath.Join(b.Dir, name)
	c, err := b.Spawn(ctx, "plane", harness.Place{}, cfg, nil)
	if err != nil {
		return nil, err
	}
	err = harness.Await(ctx, time.Minute, "the controllers are not ready", func() (bool, error) {
		var ready bool
		err := c.Call("ready", nil, &ready)
		return ready, err
	})
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}
