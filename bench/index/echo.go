package index

import (
	"context"
	"errors"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// readRig is an indexer of the raw tier, pinned to a core, what is asked of it,
// and an echo of the answers in the same process: the same heap, the same collector.
type readRig struct {
	*published

	raw       *system.Replica
	echoes    load.Pool
	questions questions
}

func newReadRig(ctx context.Context, b *harness.Bench, name string) (r *readRig, err error) {
	r = &readRig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.published, err = publishInto(ctx, b, name, system.SourceConfig{Objects: harness.Pick(b, 3000, 9990), Templates: harness.Pick(b, 500, 600)}); err != nil {
		return r, err
	}
	if r.raw, err = r.replica(ctx, b, harness.Place{Pinned: true}, indexer.TierRaw); err != nil {
		return r, err
	}
	if err = r.raw.Await(ctx, r.info.Objects); err != nil {
		return r, err
	}
	r.questions = newQuestions(r.info)
	r.echoes, err = r.echo()
	return r, err
}

// echo starts an echo in the indexer's process.
func (r *readRig) echo() (load.Pool, error) {
	var addr string
	if err := r.raw.Call("echo", system.EchoConfig{Index: r.raw.Addr, Keys: r.info.Keys, Values: r.info.Values}, &addr); err != nil {
		return nil, err
	}
	return load.Dial(addr, 1)
}

// close ends what there is of the rig.
func (r *readRig) close() error {
	err := r.echoes.Close()
	if r.raw != nil {
		err = errors.Join(err, r.raw.Close())
	}
	if r.published != nil {
		err = errors.Join(err, r.published.close())
	}
	return err
}
