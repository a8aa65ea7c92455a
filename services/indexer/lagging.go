package indexer

import "time"

// laggingAfter is how long the revision of a collection may stand still behind a
// hole in the log before it is said. Usually that is over within moments.
const laggingAfter = 10 * time.Second

// frozenSince is when the revision began to stand still; zero when it does not.
func (c *collection) frozenSince() time.Time {
	if at := c.frozen.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// lagging reports whether the revision has stood still for too long: what is
// asked at a revision is not answered here.
func (c *collection) lagging(now time.Time) bool {
	at := c.frozenSince()
	return !at.IsZero() && now.Sub(at) > laggingAfter
}
