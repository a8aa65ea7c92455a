package write

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

func change(name string, rv int, term uint64) delta.Record {
	return delta.Record{
		Kind: delta.KindDelta, Collection: delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}, Key: delta.NewKey("default", name), UID: "u",
		Type: delta.Updated, RV: strconv.Itoa(rv), Watermark: strconv.Itoa(rv), Payload: []byte("{}"), Encoding: delta.EncodingJSON, Epoch: 1, Term: term,
	}
}

// What became of an append whose acknowledgement is lost is read from the tail: it is mine, and not
// written twice, or the writer ends. It goes on behind nobody else's records.
func TestALostAcknowledgementIsResolvedByTheTailNeverByAdoptingSomebodyElses(t *testing.T) {
	t.Parallel()
	const term = 2
	for name, tc := range map[string]struct {
		before, mine, behind []delta.Record // somebody else's are before and behind mine
		want                 error
		slow                 bool // nothing but time tells that the acknowledgement is lost
	}{
		"mine":                                    {mine: []delta.Record{change("b", 3, term)}},
		"mine, found out by waiting":              {mine: []delta.Record{change("b", 3, term)}, slow: true},
		"mine, the first replaced by the second":  {mine: []delta.Record{change("b", 3, term), change("b", 4, term)}},
		"another key in its place":                {before: []delta.Record{change("other", 3, term)}, mine: []delta.Record{change("b", 3, term)}, want: link.ErrForeign},
		"its key of another term in its place":    {before: []delta.Record{change("b", 3, term-1)}, mine: []delta.Record{change("b", 3, term)}, want: link.ErrForeign},
		"its key of another version in its place": {before: []delta.Record{change("b", 2, term)}, mine: []delta.Record{change("b", 3, term)}, want: link.ErrForeign},
		"somebody else's behind it":               {mine: []delta.Record{change("b", 3, term)}, behind: []delta.Record{change("c", 4, term)}, want: link.ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := embeddedtest.NATS(t).URL()
			c, err := link.Dial(t.Context(), link.Config{URL: url})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			nc, err := nats.Connect(url)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			first := change("a", 1, term)
			w, err := New(t.Context(), c, first.Collection, Config{Term: term})
			if err == nil {
				defer w.Close()
				err = errors.Join(w.Append(t.Context(), []delta.Record{first}), w.Flush(t.Context()))
			}
			if err != nil {
				t.Fatal(err)
			}
			last := w.Acked()
			reaches := func(n int) {
				t.Helper()
				last += uint64(n)
				for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
					tail, err := c.Tail(t.Context(), first.Collection)
					if err == nil && tail.Last == last {
						return
					}
					if time.Now().After(deadline) {
						t.Fatalf("the log ends at %d, %v, want %d", tail.Last, err, last)
					}
				}
			}
			foreign := func(records []delta.Record) {
				t.Helper()
				for _, r := range records {
					if err := nc.PublishMsg(&nats.Msg{Subject: r.Subject(), Header: r.Header(), Data: r.Payload}); err != nil {
						t.Fatal(err)
					}
				}
				reaches(len(records))
			}
			if err := w.sub.Unsubscribe(); err != nil { // from here on no acknowledgement arrives
				t.Fatal(err)
			}
			foreign(tc.before)
			if err := w.Append(t.Context(), tc.mine); err != nil {
				t.Fatal(err)
			}
			if len(tc.before) == 0 {
				reaches(len(tc.mine))
			}
			foreign(tc.behind)
			if !tc.slow {
				w.mu.Lock()
				w.broken = true
				w.mu.Unlock()
			}
			if err := w.Flush(t.Context()); !errors.Is(err, tc.want) {
				t.Errorf("Flush() = %v, want %v", err, tc.want)
			}
			if tc.want == nil && w.Acked() != last {
				t.Errorf("acknowledged up to %d, want %d", w.Acked(), last)
			}
			if tc.want != nil {
				if err := w.Append(t.Context(), tc.mine); !errors.Is(err, tc.want) {
					t.Errorf("Append() after it = %v, want %v for good", err, tc.want)
				}
			}
			reaches(0) // and nothing was written meanwhile
		})
	}
}
