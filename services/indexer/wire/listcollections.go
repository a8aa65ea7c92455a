package wire

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/delta"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/read"
	"github.com/deltaplane/deltaplane/services/indexer/watch"
)

// ListCollections tells how current each collection is. It answers at any time.
func (s *server) ListCollections(ctx context.Context, _ *indexv1.ListCollectionsRequest) (*indexv1.ListCollectionsResponse, error) {
	resp := &indexv1.ListCollectionsResponse{Replica: s.cfg.Replica}
	now := time.Now()
	for _, c := range s.collections.Names().All {
		snap := c.Snapshot()
		st := snap.State()
		status := &indexv1.CollectionStatus{
			Collection: c.Name, Cluster: c.ID.Cluster, Group: c.ID.Group, Version: c.ID.Version, Resource: c.ID.Resource,
			Synced: st.Synced, Revision: read.Revision(snap), Upper: read.Upper(snap), Objects: int64(snap.Len()), LagRecords: int64(c.Lag(st)),
			Position: &deltav1.Position{Epoch: st.Position.Epoch, Sequence: st.Position.Sequence, Term: st.Position.Term},
			Stale:    follow.Stale(st, now, s.cfg.StaleAfter), Quarantined: int64(snap.Faults()), Bytes: int64(snap.Bytes()), LastError: c.LastError(),
			Tier: indexv1.Tier_TIER_RAW, StoredBytes: int64(snap.StoredBytes()), MemoryBytes: int64(c.Memory()),
			WarmStart: c.Warm(), Watchers: watch.Watching(c), Scope: scopes[c.Scope(snap)],
			Names: c.OtherNames(), Unknown: c.Unknown(), AllObjects: c.All(),
		}
		if paths := c.Dropped(); paths != nil {
			status.Dropped = dropped(paths)
		}
		if c.Compacting() {
			status.Tier = indexv1.Tier_TIER_COMPACT
		}
		if at := c.FrozenSince(); !at.IsZero() {
			status.FrozenSince, status.Lagging = timestamppb.New(at), c.Lagging()
		}
		if !st.Fresh.IsZero() {
			status.LiveAt = timestamppb.New(st.Fresh)
		}
		if whole, err := s.gate.Whole(ctx, c.ID); err != nil || !whole {
			status = outline(status)
		}
		resp.Collections = append(resp.Collections, status)
	}
	return resp, nil
}

// outline is what callers may know of a collection that they may not list as a whole: nothing that
// counts or quotes its objects.
func outline(s *indexv1.CollectionStatus) *indexv1.CollectionStatus {
	return &indexv1.CollectionStatus{
		Collection: s.GetCollection(), Cluster: s.GetCluster(), Group: s.GetGroup(), Version: s.GetVersion(), Resource: s.GetResource(),
		Synced: s.GetSynced(), Revision: s.GetRevision(), Upper: s.GetUpper(), Position: s.GetPosition(), LiveAt: s.GetLiveAt(), Stale: s.GetStale(),
		Scope: s.GetScope(), Names: s.GetNames(), Dropped: s.GetDropped(), AllObjects: s.GetAllObjects(), FrozenSince: s.GetFrozenSince(), Lagging: s.GetLagging(),
	}
}

var scopes = map[delta.Scope]indexv1.KeyScope{
	delta.Namespaced: indexv1.KeyScope_KEY_SCOPE_NAMESPACED, delta.ClusterScoped: indexv1.KeyScope_KEY_SCOPE_CLUSTER,
}

func dropped(paths []string) *indexv1.DroppedFields {
	out := &indexv1.DroppedFields{}
	for _, path := range paths {
		if path == delta.EverythingButMetadata {
			out.MetadataOnly = true
			continue
		}
		out.Paths = append(out.Paths, path)
	}
	return out
}
