package reflector

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// What "*" mirrors is noted in the bucket: a definition that vanishes while no reflector runs
// leaves a log, and only the note tells it from the log of a collection that somebody named. What
// is named is struck from the note, and its log never touched.

// storedFound is the note of a cluster.
type storedFound struct {
	Version     int      `json:"version"`
	Collections []string `json:"collections"`
}

const foundVersion = 1

// decodeFound reads a note; no bytes are an empty one.
func decodeFound(value []byte) (map[delta.Collection]bool, error) {
	out := map[delta.Collection]bool{}
	if len(value) == 0 {
		return out, nil
	}
	var in storedFound
	if err := json.Unmarshal(value, &in); err != nil {
		return nil, fmt.Errorf(`read what "*" found: %w`, err)
	}
	if in.Version != foundVersion {
		return nil, fmt.Errorf(`read what "*" found: version %d is not known`, in.Version)
	}
	for _, name := range in.Collections {
		if col, err := delta.ParseCollection(name); err == nil {
			out[col] = true
		}
	}
	return out, nil
}

func encodeFound(found map[delta.Collection]bool) ([]byte, error) {
	out := storedFound{Version: foundVersion, Collections: []string{}}
	for col := range found {
		out.Collections = append(out.Collections, col.String())
	}
	slices.Sort(out.Collections)
	return json.Marshal(out)
}

// noted is the registry's handler of notes.
func (s *Service) noted(cluster string, value []byte) {
	found, err := decodeFound(value)
	if err != nil {
		s.slog.LogAttrs(s.mirror, slog.LevelError, "a note cannot be used", slog.String(telemetry.KeyCluster, cluster), telemetry.Err(err))
		return
	}
	s.mu.Lock()
	s.found[cluster] = found
	s.mu.Unlock()
	s.disown(cluster)
}

// foundIn is what "*" is known to have found in a cluster, in this process or an earlier one.
func (s *Service) foundIn(cluster string) map[delta.Collection]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.found[cluster])
}

// note adds to a cluster's note, and strikes from it.
func (s *Service) note(ctx context.Context, cluster string, add, strike []delta.Collection) error {
	return s.registry.change(ctx, keyFound+"/"+cluster, func(value []byte) ([]byte, bool, error) {
		found, err := decodeFound(value)
		if err != nil {
			return nil, false, storeAway(err)
		}
		before := maps.Clone(found)
		for _, col := range add {
			found[col] = true
		}
		for _, col := range strike {
			delete(found, col)
		}
		if maps.Equal(before, found) {
			return nil, false, nil
		}
		value, err = encodeFound(found)
		return value, true, err
	})
}

// disown strikes what is mirrored by name from a cluster's note. A note that cannot be written now
// is when the next one is read.
func (s *Service) disown(cluster string) {
	var strike []delta.Collection
	s.mu.Lock()
	for _, r := range s.reflections {
		if r.resource.Kind != "" && r.desired.spec.Name != everything && s.found[cluster][r.col] {
			strike = append(strike, r.col)
		}
	}
	mirror := s.mirror
	s.mu.Unlock()
	if len(strike) == 0 {
		return
	}
	s.loops.Go(func() {
		ctx, cancel := context.WithTimeout(mirror, 5*time.Second)
		defer cancel()
		if err := s.note(ctx, cluster, nil, strike); err != nil && mirror.Err() == nil {
			s.slog.LogAttrs(ctx, slog.LevelWarn, "the note of what was found cannot be written", slog.String(telemetry.KeyCluster, cluster), telemetry.Err(err))
		}
	})
}

// recall compares the note with what discovery says, writes what was found since, and gives up what
// vanished while nobody looked. What another process struck, as it names it, is not written again:
// they would take turns. There is what discovery holds; fresh and unknown are as in take.
func (t *throng) recall(ctx context.Context, there map[delta.Collection]bool, unknown func(group string) bool, fresh bool) {
	cluster := t.w.spec.Cluster
	known := t.s.foundIn(cluster)
	var add, strike []delta.Collection
	for col, m := range t.members {
		switch {
		case !m.until.IsZero():
			delete(t.noted, col)
			if known[col] {
				strike = append(strike, col)
			}
		case known[col]:
			t.noted[col] = true
		case !t.noted[col]: // otherwise another process, which names it, has struck it
			add = append(add, col)
		}
	}
	for col := range known {
		switch {
		case t.members[col] != nil || there[col]:
			delete(t.lost, col)
		case t.s.named(col.Cluster, col.Group, col.Version, col.Resource):
			strike = append(strike, col)
		case fresh && !unknown(col.Group):
			if t.lost[col]++; t.lost[col] < vanishAfter {
				continue
			}
			until := time.Now().Add(t.s.cfg.KeepVanished)
			if err := t.giveUp(ctx, col, until); err != nil { // with the next answer, then
				continue
			}
			t.s.slog.LogAttrs(ctx, slog.LevelInfo, "a collection has vanished while nobody looked", slog.String(telemetry.KeyCollection, col.String()),
				slog.String(telemetry.KeyReason, "NOT_SERVED"), slog.Duration(telemetry.KeyAfter, t.s.cfg.KeepVanished))
			delete(t.lost, col)
			strike = append(strike, col)
		}
	}
	if len(add)+len(strike) == 0 {
		return
	}
	if err := t.s.note(ctx, cluster, add, strike); err != nil && ctx.Err() == nil { // with the next answer, then
		t.s.slog.LogAttrs(ctx, slog.LevelWarn, "the note of what was found cannot be written", slog.String(telemetry.KeyCluster, cluster), telemetry.Err(err))
		return
	}
	for _, col := range add {
		t.noted[col] = true
	}
}

// giveUp asks for the log of a collection that has vanished to be deleted, unless that is asked for
// already.
func (t *throng) giveUp(ctx context.Context, col delta.Collection, until time.Time) error {
	err := t.s.registry.edit(ctx, col.Cluster, func(a *additions) (bool, error) {
		if a.removals[col.String()].IsZero() {
			a.remove(col.String(), until)
			return true, nil
		}
		return false, nil
	})
	if err != nil && ctx.Err() == nil {
		t.s.slog.LogAttrs(ctx, slog.LevelWarn, "a collection that has vanished cannot be given up yet", slog.String(telemetry.KeyCollection, col.String()), telemetry.Err(err))
	}
	return err
}
