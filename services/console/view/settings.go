package view

import (
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// settings is a queue's configuration for people, without what is not set.
func settings(c *queuev1.QueueConfig) (out []*consolev1.Setting) {
	add := func(name, value string) {
		if value != "" {
			out = append(out, &consolev1.Setting{Name: name, Value: value})
		}
	}
	count := func(name string, n int64) {
		if n != 0 {
			add(name, fmt.Sprint(n))
		}
	}
	count("partitions", int64(c.GetPartitions()))
	add("lease", length(c.GetLeaseDuration()))
	add("longest lease", length(c.GetMaxLease()))
	count("max retries", c.GetMaxRetries())
	count("max deliveries", int64(c.GetMaxDeliveries()))
	add("max processing", length(c.GetMaxProcessing()))
	add("aging", length(c.GetAging()))
	add("barriers kept", length(c.GetBarrierRetention()))
	if d := c.GetDispatchLimiter(); d != nil {
		add("dispatch limiter", bucket(d))
	}
	add("rate limiter", limiter(c.GetRateLimiter()))
	add("durability", word(c.GetDurability().String(), "DURABILITY_"))
	return out
}

func length(d *durationpb.Duration) string {
	if d.AsDuration() == 0 {
		return ""
	}
	return d.AsDuration().String()
}
