package testing

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

const (
	// soon is how far ahead a delayed key is waited for.
	soon = 10 * time.Second
	// lookTimeout bounds one look.
	lookTimeout = 10 * time.Second
	// sameLooks is how many looks in a row have to find the same and nothing to wait for.
	sameLooks = 3
)

// Settled waits until nothing more will happen by itself: the index is where the API
// server is, every watch has received that, controllers have made keys of every change, and no
// key waits, is leased or is due within 10 s. It waits until a connection that was asked for
// is used, so that it may be called as soon as the code under test was started. When ctx
// ends first, the error says what it was waiting for.
//
// It does not see what the code under test does without its connections: an informer's
// handler that computes, a write that is held back by a timer.
func (e *Env) Settled(ctx context.Context) error {
	same, last := 0, look{}
	err := await(ctx, func() string {
		whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout) // what is cut short says nothing
		defer cancel()
		now, problem := e.look(whole)
		if problem != "" || now != last {
			same = 0
		}
		last = now
		if problem != "" {
			return problem
		}
		if same++; same < sameLooks {
			return "something has just happened"
		}
		return ""
	})
	if err != nil {
		return fmt.Errorf("testing: not settled: %w", err)
	}
	return nil
}

// look is what must not change from one look to the next.
type look struct {
	version uint64 // of the API server
	moves   int
}

// look follows the way of a change, so that nothing is missed that is on its way.
func (e *Env) look(ctx context.Context) (look, string) {
	now := look{version: e.parts.api.ResourceVersion()}
	uppers, problem := e.uppers(ctx, now.version)
	if problem != "" {
		return now, problem
	}
	now.moves, problem = e.activity.look(uppers)
	if problem != "" {
		return now, problem
	}
	return now, e.queues(ctx)
}

// uppers are the versions of the collections, once every replica of the index is at the
// API server's.
func (e *Env) uppers(ctx context.Context, version uint64) (map[string]delta.Revision, string) {
	least := strconv.FormatUint(version, 10)
	uppers := map[string]delta.Revision{}
	for _, conn := range e.replicas {
		answer, err := indexv1.NewIndexServiceClient(conn).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
		if err != nil {
			return nil, "the index does not answer: " + err.Error()
		}
		for _, c := range answer.GetCollections() {
			at := revision(c.GetRevision())
			if !c.GetSynced() || delta.Compare(at.RV, least) < 0 {
				return nil, fmt.Sprintf("the index has %s at %s, the API server is at %s", c.GetCollection(), at, least)
			}
			upper := revision(c.GetUpper())
			for _, name := range names(c) {
				if upper.Compare(uppers[name]) > 0 {
					uppers[name] = upper
				}
			}
		}
	}
	return uppers, ""
}

// names are those that a watch may have for a collection.
func names(c *indexv1.CollectionStatus) []string {
	var all []string
	for _, short := range []string{c.GetResource(), c.GetResource() + "." + c.GetVersion(), c.GetResource() + "." + c.GetGroup()} {
		all = append(all, short, c.GetCluster()+"/"+short)
	}
	_, long, _ := strings.Cut(c.GetCollection(), "/")
	return append(all, long, c.GetCollection())
}

// queues says what a queue still has to do.
func (e *Env) queues(ctx context.Context) string {
	answer, err := e.admin.ListQueues(ctx, &queuev1.ListQueuesRequest{})
	if err != nil {
		return "the queue does not answer: " + err.Error()
	}
	for _, q := range answer.GetQueues() {
		name, n := q.GetConfig().GetName(), q.GetCounts()
		if isFeed(name) {
			if leads, saved := e.activity.leads(name); !saved || leads && n.GetProcessing() == 0 {
				return name + " has no leader that follows the changes"
			}
			continue
		}
		if n.GetReady()+n.GetProcessing() > 0 {
			return fmt.Sprintf("%s has %d keys ready and %d leased", name, n.GetReady(), n.GetProcessing())
		}
		if n.GetDelayed() > 0 {
			if problem := e.delayed(ctx, name); problem != "" {
				return problem
			}
		}
	}
	return ""
}

// delayed says which key of a queue is due soon.
func (e *Env) delayed(ctx context.Context, queue string) string {
	for token := ""; ; {
		page, err := e.admin.ListItems(ctx, &queuev1.ListItemsRequest{Queue: queue, State: queuev1.State_STATE_DELAYED, PageSize: 1000, PageToken: token})
		if err != nil {
			return "the queue does not answer: " + err.Error()
		}
		for _, item := range page.GetItems() {
			if until := item.GetDelayedUntil().AsTime(); time.Until(until) < soon {
				return fmt.Sprintf("%s has %s due in %v (%s)", queue, item.GetKey(), time.Until(until).Round(time.Millisecond), item.GetLastReason())
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return ""
		}
	}
}
