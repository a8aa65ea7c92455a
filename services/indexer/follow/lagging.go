package follow

import "time"

// laggingAfter is how long the revision of a collection may stand still behind a
// hole in the log before it is said. Usually that is over within moments.
const laggingAfter = 10 * time.Second

// FrozenSince is when the revision began to stand still; zero when it does not.
func (c *Collection) FrozenSince() time.Time {
	if at := c.frozen.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Lagging reports whether the revision has stood still for too long.
func (c *Collection) Lagging() bool { return c.lagging(c.now()) }

// lagging reports whether the revision has stood still for too long: what is
// asked at a revision is not answered here.
func (c *Collection) lagging(now time.Time) bool {
	at := c.FrozenSince()
	return !at.IsZero() && now.Sub(at) > laggingAfter
}
