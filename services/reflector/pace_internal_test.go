package reflector

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// drained is when a publisher wrote, and how many records.
type drained struct {
	at      time.Duration
	records int
}

// A change is published at once after a pause, and those that follow closely make one batch, until
// it is full.
func TestChangesThatFollowCloselyAreGathered(t *testing.T) {
	t.Parallel()
	const ms, gather = time.Millisecond, 20 * time.Millisecond
	type step struct {
		at time.Duration
		do func(*publisher)
	}
	for name, tc := range map[string]struct {
		gather time.Duration
		stage  int // its bytes
		steps  []step
		want   []drained
	}{
		"gathered": {
			gather, 0,
			[]step{{0, changes(1, 0)}, {5 * ms, changes(1, 0)}, {10 * ms, changes(1, 0)}, {19 * ms, changes(1, 0)}},
			[]drained{{0, 1}, {20 * ms, 3}},
		},
		"after a pause":  {gather, 0, []step{{0, changes(1, 0)}, {30 * ms, changes(1, 0)}}, []drained{{0, 1}, {30 * ms, 1}}},
		"one after each": {gather, 0, []step{{0, changes(1, 0)}, {5 * ms, changes(1, 0)}, {25 * ms, changes(1, 0)}}, []drained{{0, 1}, {20 * ms, 1}, {40 * ms, 1}}},
		"no time":        {0, 0, []step{{0, changes(1, 0)}, {5 * ms, changes(1, 0)}}, []drained{{0, 1}, {5 * ms, 1}}},
		"a bookmark":     {gather, 0, []step{{0, bookmark}, {5 * ms, changes(1, 0)}}, []drained{{0, 1}, {5 * ms, 1}}},
		"full batches":   {gather, 0, []step{{0, changes(popRecords, 0)}, {5 * ms, changes(popRecords, 0)}}, []drained{{0, popRecords}, {5 * ms, popRecords}}},
		"a burst":        {gather, 0, []step{{0, changes(1, 0)}, {5 * ms, changes(5000, 0)}}, []drained{{0, 1}, {5 * ms, 5000}}},
		"not yet full":   {gather, 0, []step{{0, changes(1, 0)}, {5 * ms, changes(popRecords-1, 0)}}, []drained{{0, 1}, {20 * ms, popRecords - 1}}},
		"full by bytes":  {gather, 0, []step{{0, changes(1, 0)}, {5 * ms, changes(1, popBytes)}}, []drained{{0, 1}, {5 * ms, 1}}},
		"half a stage":   {gather, 8 << 10, []step{{0, changes(1, 0)}, {5 * ms, changes(1, 4<<10)}}, []drained{{0, 1}, {5 * ms, 1}}},
		"a list": {
			gather, 0,
			[]step{{0, changes(500, 0)}, {2 * ms, changes(500, 0)}, {4 * ms, changes(500, 0)}, {6 * ms, changes(9, 0)}, {8 * ms, listed}},
			[]drained{{0, 500}, {4 * ms, 1000}, {8 * ms, 10}},
		},
		"a list of nothing new": {gather, 0, []step{{0, changes(1, 0)}, {5 * ms, listed}, {6 * ms, changes(1, 0)}}, []drained{{0, 1}, {5 * ms, 1}, {20 * ms, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := &publisher{r: &reflection{cfg: Config{StageBytes: tc.stage}.withDefaults()}, wake: make(chan struct{}, 1)}
				p.stage = delta.NewStage(p.r.cfg.StageBytes, "0")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began, got := time.Now(), []drained(nil)
				ended := make(chan error, 1)
				go func() {
					ended <- pace{wake: p.wake, gather: tc.gather, live: time.Hour, full: p.full, drain: func(context.Context) (int, error) {
						records := taken(p)
						if len(records) > 0 {
							got = append(got, drained{time.Since(began), len(records)})
						}
						return deltas(records), nil
					}}.run(ctx)
				}()
				for _, step := range tc.steps {
					time.Sleep(step.at - time.Since(began))
					step.do(p)
					synctest.Wait()
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if !slices.Equal(got, tc.want) {
					t.Errorf("published %v, want %v", got, tc.want)
				}
				cancel()
				<-ended
			})
		})
	}
}

// changes stages so many, each of so many bytes.
func changes(n, size int) func(*publisher) {
	return func(p *publisher) {
		p.add(func(st *delta.Stage) {
			for range n {
				rv := next(st)
				st.Push(delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Key: delta.NewKey("default", rv), RV: rv, Payload: make([]byte, size)})
				st.Advance(rv)
			}
		})
	}
}

func bookmark(p *publisher) { p.add(func(st *delta.Stage) { st.Advance(next(st)) }) }

// listed ends a list.
func listed(p *publisher) {
	p.add(func(st *delta.Stage) {
		st.Control(delta.Record{Kind: delta.KindSynced, RV: st.Watermark()})
		p.lists = append(p.lists, false)
	})
}

// next is a version behind everything that was staged.
func next(st *delta.Stage) delta.RV {
	w, _ := strconv.Atoi(st.Watermark())
	return strconv.Itoa(w + st.Len() + 1)
}

// taken takes what is staged.
func taken(p *publisher) (out []delta.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		records := p.stage.Pop(popRecords, popBytes)
		if len(records) == 0 {
			p.lists = nil
			return out
		}
		out = append(out, records...)
	}
}

// What is gathered holds back no liveness record.
func TestALivenessRecordDoesNotWaitForWhatIsGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		wake, beats := make(chan struct{}, 1), 0
		ended := make(chan error, 1)
		go func() {
			ended <- pace{
				wake: wake, gather: time.Second, live: 100 * time.Millisecond,
				drain: func(context.Context) (int, error) { return 1, nil },
				beat:  func(context.Context) error { beats++; return nil },
			}.run(ctx)
		}()
		wake <- struct{}{}
		time.Sleep(550 * time.Millisecond)
		synctest.Wait()
		if beats != 5 {
			t.Errorf("%d liveness records within half a second of gathering, want 5", beats)
		}
		cancel()
		<-ended
	})
}
