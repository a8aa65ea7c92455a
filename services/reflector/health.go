package reflector

import (
	"context"
	"time"

	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// healthEvery is how far health may be behind readiness. It follows the log's connection at once.
const healthEvery = 500 * time.Millisecond

// tellHealth has health say what /readyz says, until ctx ends.
func (s *Service) tellHealth(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	s.loops.Go(func() {
		s.log.FollowHealth(ctx, func(bool) {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		s.rpc.SetServing(reflectorv1.ReflectorService_ServiceDesc.ServiceName, s.Ready(ctx).Ready)
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
