package informer_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
)

// written keeps what a logger writes while a test reads it.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func TestAnInformerOfACollectionThatNobodyServesWarnsAgainAndAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource()
		src.refuseWith(client.ErrCollectionNotFound)
		var log written
		i := create(t, src, func(c *informer.Config[*thing]) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		i.run(t)
		after(0)
		if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "COLLECTION_NOT_FOUND") {
			t.Errorf("at once it says:\n%s", text)
		}
		after(10 * time.Minute)
		if n := strings.Count(log.String(), "level=WARN"); n < 6 || n > 11 {
			t.Errorf("in ten minutes it warned %d times, want once a minute or so", n)
		}
	})
}
