package authority

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

func serviceAccount(name string) *access.Identity {
	return &access.Identity{User: access.ServiceAccountPrefix + "a:" + name, Groups: []string{access.Authenticated}, Source: access.Cluster}
}

func TestATokenIsReviewedOnceInTenSecondsHoweverManyCallWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		token := jwt("b", Audience, time.Now().Add(time.Hour))
		f := &api{tokens: map[string]*access.Identity{token: serviceAccount("b")}}
		a, _ := guarded(t, f, "")
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() {
				id, err := a.Authorize(with(t.Context(), "10.0.0.1", token), "/m")
				if err != nil || id.User != "system:serviceaccount:a:b" || id.Cluster != "dev" || id.Source != access.Cluster {
					t.Errorf("%+v, %v", id, err)
				}
			})
		}
		calls.Wait()
		if _, n := f.count(); n != 1 {
			t.Errorf("%d reviews for 100 calls", n)
		}
		f.set(func() { delete(f.tokens, token) }) // its service account is deleted
		time.Sleep(reviewedFor + time.Millisecond)
		if _, err := a.Authorize(with(t.Context(), "10.0.0.1", token), "/m"); rpc.Code(err) != codes.Unauthenticated {
			t.Errorf("ten seconds later: %v", err)
		}
	})
}

func TestATokenIsReviewedAgainWhenItsServiceAccountChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, others := jwt("b", Audience, time.Now().Add(time.Hour)), jwt("c", Audience, time.Now().Add(time.Hour))
		f := &api{tokens: map[string]*access.Identity{ours: serviceAccount("b"), others: serviceAccount("c")}}
		a, _ := guarded(t, f, "")
		code := func(token string) codes.Code {
			_, err := a.Authorize(with(t.Context(), "10.0.0.1", token), "/m")
			return rpc.Code(err)
		}
		for _, token := range []string{ours, others} {
			if got := code(token); got != codes.OK {
				t.Fatal(got)
			}
		}
		event := func(name string) {
			if err := a.clusters[0].account([]byte(`{"metadata":{"namespace":"a","name":"`+name+`"}}`), false); err != nil {
				t.Fatal(err)
			}
		}
		event("somebody")
		if len(a.ended) != 0 {
			t.Error("open streams are looked at because of a service account that nobody uses here")
		}
		event("b") // the API server does not know yet
		if got := code(ours); got != codes.OK || len(a.ended) != 1 {
			t.Errorf("%v, %d looks at open streams", got, len(a.ended))
		}
		f.set(func() { delete(f.tokens, ours) })
		time.Sleep(unsettledFor)
		if got := code(ours); got != codes.Unauthenticated {
			t.Errorf("a moment after its service account was deleted: %v", got)
		}
		if got := code(others); got != codes.OK {
			t.Errorf("another's: %v", got)
		}
		if _, n := f.count(); n != 4 {
			t.Errorf("%d reviews, want two and two more of the one that changed", n)
		}
		if a.clusters[0].account([]byte("{"), false) == nil {
			t.Error("an event that is no JSON is taken")
		}
	})
}

func TestATokenThatIsNotForUsIsRefusedWithoutAReview(t *testing.T) {
	t.Parallel()
	f := &api{}
	a, _ := guarded(t, f, "")
	for name, token := range map[string]string{
		"opaque":          "0123456789abcdef0123456789abcdef",
		"another's":       jwt("b", "https://kubernetes.default.svc", time.Now().Add(time.Hour)),
		"over":            jwt("b", Audience, time.Now().Add(-time.Hour)),
		"no JSON":         "a.b.c",
		"nothing":         "",
		"many dots":       "a.b.c.d",
		"no token at all": "..",
	} {
		if _, err := a.Authorize(with(t.Context(), "10.0.0.1", token), "/m"); rpc.Code(err) != codes.Unauthenticated || rpc.Reason(err) != "UNAUTHENTICATED" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, n := f.count(); n != 0 {
		t.Errorf("%d reviews", n)
	}
}

// A storm of tokens that nobody knows takes few reviews, and those whose tokens are known go on.
func TestAStormOfUnknownTokensIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		good := jwt("b", Audience, time.Now().Add(time.Hour))
		f := &api{tokens: map[string]*access.Identity{good: serviceAccount("b")}}
		a, _ := guarded(t, f, "")
		if _, err := a.Authorize(with(t.Context(), "10.0.0.1", good), "/m"); err != nil {
			t.Fatal(err)
		}
		refused := 0
		for i := range 10_000 {
			_, err := a.Authorize(with(t.Context(), "10.0.0.1", jwt(fmt.Sprint(i), Audience, time.Now().Add(time.Hour))), "/m")
			if rpc.Reason(err) == "TOO_MANY_UNKNOWN_TOKENS" {
				refused++
				if rpc.RetryDelay(err) <= 0 {
					t.Fatal("it is not told when to come again")
				}
			}
			time.Sleep(time.Millisecond)
		}
		_, n := f.count()
		if most := 1 + unknownBurst + 10*unknownRate + 2; n > most {
			t.Errorf("%d reviews in ten seconds, at most %d", n, most)
		}
		if refused < 9000 {
			t.Errorf("%d of 10,000 were refused unseen", refused)
		}
		time.Sleep(reviewedFor)
		if _, err := a.Authorize(with(t.Context(), "10.0.0.1", good), "/m"); err != nil {
			t.Errorf("the known token of the same host: %v", err)
		}
		if _, err := a.Authorize(with(t.Context(), "10.0.0.2", jwt("x", Audience, time.Now().Add(time.Hour))), "/m"); rpc.Code(err) != codes.Unauthenticated {
			t.Errorf("another host: %v", err)
		}
	})
}

func TestATokenCountsNowhereWhileItsClusterIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		token := jwt("b", Audience, time.Now().Add(time.Hour))
		f := &api{tokens: map[string]*access.Identity{token: serviceAccount("b")}, err: errAway}
		a, _ := guarded(t, f, "")
		_, err := a.Authorize(with(t.Context(), "10.0.0.1", token), "/m")
		if rpc.Code(err) != codes.Unavailable || rpc.Reason(err) != "ACCESS_UNDECIDED" || rpc.RetryDelay(err) <= 0 {
			t.Errorf("%v", err)
		}
		f.set(func() { f.err = nil })
		time.Sleep(failedFor + time.Millisecond)
		if _, err := a.Authorize(with(t.Context(), "10.0.0.1", token), "/m"); err != nil {
			t.Errorf("when it is back: %v", err)
		}
		f.set(func() { f.slow = make(chan struct{}) })
		time.Sleep(reviewedFor)
		began := time.Now()
		if _, err := a.Authorize(with(t.Context(), "10.0.0.1", token), "/m"); rpc.Code(err) != codes.Unavailable || time.Since(began) > reviewTimeout {
			t.Errorf("when it hangs: %v after %v", err, time.Since(began))
		}
	})
}

func FuzzATokenOfAnyFormIsRefusedOrReviewed(f *testing.F) {
	f.Add(jwt("b", Audience, time.Unix(2_000_000_000, 0)))
	f.Add("..")
	f.Add("e30.eyJhdWQiOiJkZWx0YXBsYW5lIn0.x")
	f.Fuzz(func(t *testing.T, token string) {
		_ = unsuitable(token, time.Unix(1_700_000_000, 0))
	})
}
