package view

import (
	"fmt"
	"strings"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// limiter is a rate limiter as people read it, who know client-go's.
func limiter(l *queuev1.RateLimiter) string {
	switch k := l.GetKind().(type) {
	case *queuev1.RateLimiter_Exponential:
		return fmt.Sprintf("exponential, %v to %v", k.Exponential.GetBase().AsDuration(), k.Exponential.GetMax().AsDuration())
	case *queuev1.RateLimiter_Bucket:
		return "bucket of " + bucket(k.Bucket)
	case *queuev1.RateLimiter_FastSlow:
		return fmt.Sprintf("%v for %d attempts, then %v", k.FastSlow.GetFast().AsDuration(), k.FastSlow.GetMaxFastAttempts(), k.FastSlow.GetSlow().AsDuration())
	case *queuev1.RateLimiter_MaxOf:
		var parts []string
		for _, one := range k.MaxOf.GetLimiters() {
			parts = append(parts, limiter(one))
		}
		return "the longest of: " + strings.Join(parts, "; ")
	case *queuev1.RateLimiter_MaxWait:
		return fmt.Sprintf("%s; at most %v", limiter(k.MaxWait.GetLimiter()), k.MaxWait.GetMax().AsDuration())
	}
	return ""
}

func bucket(b *queuev1.BucketLimiter) string {
	return fmt.Sprintf("%v a second, %d at once", b.GetQps(), b.GetBurst())
}
