package logs

import (
	"context"
	"errors"
	"fmt"

	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// folded is what a log says about its collection, read once from its start.
type folded struct {
	state    map[delta.Key]system.ObjectState
	controls int // records that a term begins with and the end of its list
}

// foldLog reads the log of the pods up to its end.
func foldLog(ctx context.Context, url string) (folded, error) {
	conn, err := stream.Connect(ctx, stream.Config{URL: url})
	if err != nil {
		return folded{}, err
	}
	defer conn.Close()
	a, end, controls := newAudit(nil, 0), errors.New("replayed"), 0
	err = conn.Read(ctx, population.PodsCollection, stream.ReadConfig{}, func(_ context.Context, b delta.Batch) error {
		a.apply(b)
		for i := range b.Records {
			switch b.Records[i].Kind {
			case delta.KindOrigin, delta.KindFence, delta.KindTerm, delta.KindSynced:
				controls++
			}
		}
		if b.Replayed {
			return end
		}
		return nil
	})
	if !errors.Is(err, end) {
		return folded{}, errors.Join(errors.New("the log was not read to its end"), err, ctx.Err())
	}
	f := folded{state: a.live(), controls: controls}
	if !a.follower.Readable() || a.Faults.Damaged+a.Faults.Unreadable > 0 {
		return f, fmt.Errorf("%w: readable %v, %+v", errLogDiffers, a.follower.Readable(), a.Faults)
	}
	return f, nil
}

// versions is the hash of keys and versions.
func (f folded) versions() string {
	all := make([]string, 0, len(f.state))
	for key, o := range f.state {
		all = append(all, string(key)+"="+o.RV)
	}
	return system.VersionHash(all)
}
