package kube

import (
	"context"
	"time"
)

// identity is what a client knows of which cluster it speaks to.
type identity struct {
	turn  chan struct{} // cap 1; who holds it may ask, and read and write the rest
	uid   string
	err   error // that the caller may not know
	asked time.Time
}

// Identity is what tells the cluster from every other one, also under the same address: the UID of
// its namespace kube-system, which nobody can delete. Empty when the cluster has no such namespace.
// It was asked for after since; callers at the same time share one request. Errors are those of
// [Client.Get].
func (c *Client) Identity(ctx context.Context, since time.Time) (string, error) {
	select {
	case c.identity.turn <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	defer func() { <-c.identity.turn }()
	if !c.identity.asked.After(since) {
		now := time.Now()
		uid, err := c.Lives(ctx, Ref{Resource: Resource{Version: "v1", Name: "namespaces"}, Name: "kube-system"}, "0")
		if err != nil && !IsForbidden(err) {
			return "", err
		}
		c.identity.uid, c.identity.err, c.identity.asked = uid, err, now
	}
	return c.identity.uid, c.identity.err
}
