package pleg

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	rules "github.com/deltaplane/deltaplane/core/pleg"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

const uid = types.UID("1234")

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// answers reports whether the cache answers at once.
func answers(t *testing.T, c *Cache, newer time.Time) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.GetNewerThan(ctx, uid, newer)
	return err == nil
}

// Upstream's TestGetIfNewerThanWhenPodExists.
func TestAKnownPodIsNewerByItsOwnTimeOrTheCaches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		pod, everyone time.Duration
		held          bool
		want          bool
	}{
		{"everybody is newer", -time.Second, time.Second, false, true},
		{"the pod is newer", time.Second, -time.Second, false, true},
		{"both are newer", time.Second, time.Second, false, true},
		{"both are older", -time.Second, -time.Second, false, false},
		{"both are just as old", 0, 0, false, false},
		{"everybody is newer, the pod is on hold", -time.Second, time.Second, true, false},
		{"the pod is newer, and on hold", time.Second, -time.Second, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cache := newCache()
			if c.held {
				cache.hold(uid)
			}
			cache.set(uid, &container.PodStatus{UID: uid}, nil, epoch.Add(c.pod), 1)
			cache.declare(epoch.Add(c.everyone))
			if got := answers(t, cache, epoch); got != c.want {
				t.Errorf("answers at once: %t, want %t", got, c.want)
			}
		})
	}
}

// Upstream's TestGetPodNewerThanWhenPodDoesNotExist.
func TestAnUnknownPodIsEmptyOnceTheCacheIsNewer(t *testing.T) {
	t.Parallel()
	cache := newCache()
	cache.declare(epoch)
	if !answers(t, cache, epoch.Add(-time.Second)) {
		t.Error("waits for a pod that is not there")
	}
	if answers(t, cache, epoch) || answers(t, cache, epoch.Add(time.Second)) {
		t.Error("answers for a time that has not come")
	}
	if s, err := cache.Get(uid); err != nil || s.UID != uid {
		t.Errorf("Get() = %v, %v", s, err)
	}
}

func TestAWaiterIsAnsweredByWhateverComesFirst(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	status := &container.PodStatus{UID: uid, Name: "p"}
	for _, c := range []struct {
		name string
		come func(c *Cache)
		want error
		pod  string
	}{
		{"a status", func(c *Cache) { c.set(uid, status, nil, epoch.Add(1), 1) }, nil, "p"},
		{"an error", func(c *Cache) { c.set(uid, nil, away, epoch.Add(1), 1) }, away, ""},
		{"everybody's time", func(c *Cache) { c.declare(epoch.Add(1)) }, nil, ""},
		{"the pod is not there", func(c *Cache) { c.absent(uid, epoch.Add(1)) }, nil, ""},
		{"the hold ends", func(c *Cache) { c.hold(uid); c.declare(epoch.Add(1)); c.release(uid) }, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cache := newCache()
				var asked int
				cache.waits = func(types.UID, time.Time) { asked++ }
				type answer struct {
					status *container.PodStatus
					err    error
				}
				got := make(chan answer, 1)
				go func() {
					s, err := cache.GetNewerThan(t.Context(), uid, epoch)
					got <- answer{s, err}
				}()
				synctest.Wait()
				cache.set("other", status, nil, epoch.Add(time.Hour), 1)
				cache.set(uid, status, nil, epoch.Add(-1), 1)
				cache.declare(epoch)
				cache.Delete(uid)
				synctest.Wait()
				if len(got) > 0 || asked != 1 {
					t.Fatalf("answered before its time, or asked %d times", asked)
				}
				if w := cache.waiting(); len(w) != 1 || w[0] != uid {
					t.Errorf("waiting() = %v", w)
				}
				c.come(cache)
				a := <-got
				if !errors.Is(a.err, c.want) || a.err == nil && a.status.Name != c.pod {
					t.Errorf("GetNewerThan() = %+v, %v", a.status, a.err)
				}
				if len(cache.waiters) > 0 {
					t.Error("the waiter was kept")
				}
			})
		})
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cache := newCache()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cache.GetNewerThan(ctx, uid, epoch); !errors.Is(err, context.Canceled) {
		t.Errorf("GetNewerThan() = %v", err)
	}
	if len(cache.waiters) > 0 {
		t.Error("the waiter was kept")
	}
}

func TestOnlyNewerStatusesAreTaken(t *testing.T) {
	t.Parallel()
	cache := newCache()
	cache.set(uid, &container.PodStatus{Name: "new"}, nil, epoch, 1)
	for _, c := range []struct {
		at    time.Time
		stamp rules.Stamp
		takes bool
	}{{epoch.Add(-1), 9, false}, {epoch, 0, false}, {epoch, 1, true}, {epoch, 2, true}, {epoch.Add(1), 0, true}} {
		if got := cache.takes(uid, c.at, c.stamp); got != c.takes {
			t.Errorf("takes(%v, %d) = %t, want %t", c.at, c.stamp, got, c.takes)
		}
	}
	cache.set(uid, &container.PodStatus{Name: "old"}, nil, epoch.Add(-1), 9)
	if s, _ := cache.Get(uid); s.Name != "new" {
		t.Errorf("the cache has the %s status", s.Name)
	}
	cache.declare(epoch)
	cache.declare(epoch.Add(-time.Hour))
	if !cache.current.Equal(epoch) {
		t.Error("everybody's time went back")
	}
}
