package informer_test

import (
	"testing"
	"time"
)

func TestAnInformersStatusSaysSinceWhenItsCollectionLags(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a/one")
		i := create(t, src, nil)
		i.run(t)
		after(0)
		if since := i.Status().LaggingSince; !since.IsZero() {
			t.Errorf("lagging since %v before anybody said so", since)
		}
		src.mu.Lock()
		tell := src.asked[0].OnLagging
		src.mu.Unlock()
		began := time.Now().Add(-time.Minute)
		tell(began)
		if since := i.Status().LaggingSince; !since.Equal(began) {
			t.Errorf("lagging since %v, want %v", since, began)
		}
		tell(time.Time{})
		if since := i.Status().LaggingSince; !since.IsZero() {
			t.Errorf("lagging since %v after it was over", since)
		}
	})
}
