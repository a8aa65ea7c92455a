package workqueue_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/client/workqueue"
)

// The tests of client-go's delaying queue run on a clock that is moved by hand.
// The service's clock is the store's, so these wait; their times are longer
// than upstream's, so that a busy machine does not change what they see.

const (
	unit  = 200 * time.Millisecond
	other = 20 * unit // so late that nothing else is as late on a busy machine
)

func TestSimpleQueue(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		began := time.Now()
		q.AddAfter("foo", 5*unit)
		if n := q.Len(); n != 0 {
			t.Errorf("%d keys wait before their time", n)
		}
		q.Done(get(t, q))
		if took := time.Since(began); took < 5*unit {
			t.Errorf("it came after %v, before its time of %v", took, 5*unit)
		}
		never(t, 3*unit, "it came a second time", func() bool { return q.Len() > 0 })
	})
}

func TestDeduping(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		t.Run("a later time is ignored", func(t *testing.T) {
			t.Parallel()
			q := s.openNamed(t, "later", nil)
			began := time.Now()
			q.AddAfter("foo", 3*unit)
			q.AddAfter("foo", other)
			q.Done(get(t, q))
			if took := time.Since(began); took < 3*unit || took >= other {
				t.Errorf("it came after %v, want %v", took, 3*unit)
			}
			never(t, other+2*unit-time.Since(began), "it came a second time", func() bool { return q.Len() > 0 })
		})
		t.Run("a sooner time moves it up", func(t *testing.T) {
			t.Parallel()
			q := s.openNamed(t, "sooner", nil)
			began := time.Now()
			q.AddAfter("foo", other)
			q.AddAfter("foo", 3*unit)
			q.Done(get(t, q))
			if took := time.Since(began); took < 3*unit || took >= other {
				t.Errorf("it came after %v, want %v", took, 3*unit)
			}
			never(t, other+2*unit-time.Since(began), "it came a second time", func() bool { return q.Len() > 0 })
		})
		t.Run("an add does not take a pending delay away", func(t *testing.T) {
			t.Parallel()
			q := s.openNamed(t, "pending", nil)
			q.AddAfter("foo", 3*unit)
			q.Add("foo")
			q.Done(get(t, q))
			q.Forget("foo")
			q.Done(get(t, q)) // once more, when it is due
		})
		t.Run("no delay is an add", func(t *testing.T) {
			t.Parallel()
			q := s.openNamed(t, "now", nil)
			q.AddAfter("foo", 0)
			q.AddAfter("bar", -time.Second)
			if n := q.Len(); n != 2 {
				t.Errorf("%d keys wait, want 2", n)
			}
		})
	})
}

// order adds keys after delays and tells in which order they come.
func order(t *testing.T, q *workqueue.Queue, delays map[string]time.Duration, adds ...string) []string {
	t.Helper()
	for _, key := range adds {
		q.AddAfter(key, delays[key])
	}
	var got []string
	for range adds {
		key := get(t, q)
		got = append(got, key)
		q.Done(key)
	}
	return got
}

func TestAddTwoFireEarly(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		got := order(t, s.open(t), map[string]time.Duration{"foo": 6 * unit, "bar": 2 * unit, "baz": 10 * unit}, "foo", "bar", "baz")
		if d := cmp.Diff([]string{"bar", "foo", "baz"}, got); d != "" {
			t.Errorf("order (-want +got):\n%s", d)
		}
	})
}

func TestCopyShifting(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		got := order(t, s.open(t), map[string]time.Duration{"first": 9 * unit, "second": 6 * unit, "third": 3 * unit}, "first", "second", "third")
		if d := cmp.Diff([]string{"third", "second", "first"}, got); d != "" {
			t.Errorf("order (-want +got):\n%s", d)
		}
	})
}

func TestRateLimitingQueue(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		for i, x := range []struct {
			key  string
			want int
		}{{"one", 1}, {"one", 2}, {"two", 1}, {"two", 2}} {
			q.AddRateLimited(x.key)
			if n := q.NumRequeues(x.key); n != x.want {
				t.Errorf("after step %d NumRequeues of %s is %d, want %d", i, x.key, n, x.want)
			}
		}
		for range 2 { // 1 ms and 2 ms later, as the exponential limiter says
			key := get(t, q)
			q.Done(key)
		}
		q.Forget("one")
		if n := q.NumRequeues("one"); n != 0 {
			t.Errorf("after Forget NumRequeues is %d, want 0", n)
		}
		if n := q.NumRequeues("two"); n != 2 {
			t.Errorf("Forget of one makes NumRequeues of two %d, want 2", n)
		}
		began := time.Now()
		for range 8 { // 1 ms, 2 ms, ... 128 ms
			q.AddRateLimited("three")
			if key := get(t, q); key == "three" {
				q.Done(key)
			} else {
				q.Done(key)
				q.Done(get(t, q))
			}
		}
		if took := time.Since(began); took < 255*time.Millisecond {
			t.Errorf("eight retries took %v, want at least the sum of 1 to 128 ms", took)
		}
	})
}
