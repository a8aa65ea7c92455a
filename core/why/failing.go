package why

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// What an API server's refusals say, whatever client passes them on.
var (
	webhook   = regexp.MustCompile(`admission webhook "([^"]+)" denied the request`)
	policy    = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)'.* denied request`)
	forbidden = regexp.MustCompile(`is forbidden: User "([^"]*)" cannot (\S+) resource "([^"]*)"`)
	conflict  = regexp.MustCompile(`the object has been modified|Operation cannot be fulfilled on`)
)

// classify names what an API server refused by what a worker said; nil where it says nothing of it.
func classify(reason string) *finding {
	if m := webhook.FindStringSubmatch(reason); m != nil {
		return &finding{AdmissionDeny, fmt.Sprintf("the admission webhook %q denies what its controller writes (%s)", m[1], reason), "change what is written, or the webhook's rule"}
	}
	if m := policy.FindStringSubmatch(reason); m != nil {
		return &finding{AdmissionDeny, fmt.Sprintf("the admission policy %q denies what its controller writes (%s)", m[1], reason), "change what is written, or the policy"}
	}
	if m := forbidden.FindStringSubmatch(reason); m != nil {
		return &finding{
			Forbidden, fmt.Sprintf("RBAC does not let its controller, the user %q, %s %s (%s)", m[1], m[2], m[3], reason),
			fmt.Sprintf("grant that user the verb %s on %s", m[2], m[3]),
		}
	}
	if conflict.MatchString(reason) {
		return &finding{
			Conflict, fmt.Sprintf("its writes meet a conflict (%s): somebody else writes the same object, or its controller writes what it read long ago", reason),
			"look at the object's managedFields for who else writes it, and write by patch or server-side apply",
		}
	}
	return nil
}

// gaveBack says that the last run did not get on because of what it could not read.
func (f *Facts) gaveBack() bool {
	if last := f.lastSettled(); last != nil && last.Outcome == workqueue.Release && last.Reason != "" {
		return true
	}
	for _, text := range []string{"REVISION_NOT_REACHED", "COLLECTION_NOT_SYNCED", "COLLECTION_NOT_FOUND"} {
		if strings.Contains(f.Item.Reason, text) {
			return true
		}
	}
	return false
}

// backoff is what the rate limiter has a key wait for, without a subject.
func (f *Facts) backoff() finding {
	own, most := alone(f.Config.Limiter, f.Item.Requeues-1), alone(f.Config.Limiter, 1<<20)
	attempt := fmt.Sprintf("attempt %d", f.Item.Requeues)
	if f.Config.MaxRetries > 0 {
		attempt += fmt.Sprintf(" of %d", f.Config.MaxRetries)
	}
	until := clock(f.Item.DelayedUntil)
	wait := f.Item.DelayedUntil.Sub(f.delayedAt())
	now := fmt.Sprintf(`"deltaplane queue retry %s %s" runs it now`, f.Queue, f.Key)
	switch {
	case f.Config.Limiter != nil && f.Config.Limiter.Buckets() > 0 && wait > own+own/10+20*time.Millisecond:
		return finding{
			BucketExhausted, fmt.Sprintf("waits until %s for a token of the rate limiter's bucket, which all keys of the queue share, %v and not the %v of its own back-off (%s)", until, plain(wait), plain(own), attempt),
			"mend what makes so many keys fail, or raise the bucket with --rate-limiter",
		}
	case own == most && own > alone(f.Config.Limiter, 0):
		return finding{BackoffMaximum, fmt.Sprintf("waits until %s in a back-off that is at its maximum of %v (%s)", until, plain(most), attempt), "mend what fails, then " + now}
	}
	return finding{Backoff, fmt.Sprintf("waits until %s in a back-off of %v (%s)", until, plain(own), attempt), "mend what fails; " + now}
}

// delayedAt is when the limiter gave the key its time: without a history, now at the latest.
func (f *Facts) delayedAt() time.Time {
	for _, e := range f.History {
		if e.Kind == Settled && e.Outcome == workqueue.Retry || e.Kind == Added {
			return e.At
		}
	}
	return f.StoreTime
}

// alone is the delay that a limiter gives a key by its own failures, without what all keys share.
func alone(l *backoff.Limiter, failures int) time.Duration {
	if l == nil {
		return 0
	}
	return without(*l).When(max(failures, 0), 0, nil)
}

func without(l backoff.Limiter) backoff.Limiter {
	if l.Kind == backoff.Bucket {
		return backoff.Limiter{}
	}
	of := make([]backoff.Limiter, len(l.Of))
	for i := range l.Of {
		of[i] = without(l.Of[i])
	}
	l.Of = of
	return l
}
