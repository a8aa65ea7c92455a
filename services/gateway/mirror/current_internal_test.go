package mirror

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/kube"
)

func TestAViewGrowsOldWhileNoExactStateComes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := New(t.Context(), "dev/configmaps.v1", kube.Resource{}, "ConfigMapList", nil, nil, slog.New(slog.DiscardHandler))
		f := &filling{m: m, store: newStore(), history: newHistory()}
		at := func(revision, upper string) client.Event {
			return client.Event{Type: client.EventBookmark, Revision: client.Revision{Epoch: 1, RV: revision}, Upper: client.Revision{Epoch: 1, RV: upper}}
		}
		take := func(e client.Event) {
			t.Helper()
			if err := f.take(e); err != nil {
				t.Fatal(err)
			}
		}
		end := at("5", "5")
		end.Type = client.EventInitialEnd
		take(end)
		begun := m.Current()
		if m.View() == nil || time.Since(begun) != 0 {
			t.Fatalf("the first state is of %v", begun)
		}
		for range 20 { // changes come all the time, and no moment is exact
			time.Sleep(time.Second)
			take(at("5", "9"))
		}
		if got := m.Current(); !got.Equal(begun) {
			t.Errorf("after 20 s the view counts as of %v ago", time.Since(got))
		}
		take(at("9", "9"))
		if got := time.Since(m.Current()); got != 0 || m.View().Revision != 9 {
			t.Errorf("an exact state is of %v ago", got)
		}
		time.Sleep(time.Second)
		take(at("9", "9")) // nothing has happened
		if got := time.Since(m.Current()); got != 0 {
			t.Errorf("a state that the index has confirmed is of %v ago", got)
		}
	})
}
