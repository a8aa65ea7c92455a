package explain

import (
	"context"
	"slices"
	"sync"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/why"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// mostWritten is how many of the last run's writes the index is asked about.
const mostWritten = 5

// written asks the index whether it shows what the last run wrote. What it cannot say is left out.
func (p *Parts) written(ctx context.Context, f *why.Facts) {
	var all []why.Write
	for _, e := range f.History {
		if e.Kind == why.Settled {
			all = e.Writes
			break
		}
	}
	all = all[max(0, len(all)-mostWritten):]
	if len(all) == 0 {
		return
	}
	index := indexv1.NewIndexServiceClient(p.Index.Conn)
	shown := make([]*why.Written, len(all))
	var wg sync.WaitGroup
	for i, w := range all {
		wg.Go(func() {
			got, err := index.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: w.Collection, Keys: []string{w.Key}, View: indexv1.View_VIEW_METADATA})
			if err != nil || len(got.GetQuarantinedKeys()) > 0 {
				return
			}
			shown[i] = &why.Written{Write: w}
			for _, o := range got.GetObjects() {
				shown[i].Shown = o.GetResourceVersion()
			}
			shown[i].Visible = visible(shown[i])
		})
	}
	wg.Wait()
	for _, w := range slices.DeleteFunc(shown, func(w *why.Written) bool { return w == nil }) {
		f.Written = append(f.Written, *w)
	}
}

// visible says whether the index shows a write or a later one: of a deletion, that the object is
// gone or marked by it.
func visible(w *why.Written) bool {
	if w.Shown == "" {
		return w.Verb == "delete"
	}
	return w.RV != "" && delta.Compare(w.Shown, w.RV) >= 0
}
