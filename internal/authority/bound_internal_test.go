package authority

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/client-go/rest"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// claims is a token with claims beside those of its audience.
func claims(more string) string {
	payload := fmt.Sprintf(`{"aud":[%q]%s}`, Audience, more)
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".sig"
}

// shelf has objects that can be listed. Its watches end when one is taken from it.
type shelf struct {
	mu    sync.Mutex
	uids  map[string]string // by "resource namespace field-selector"
	err   error
	taken chan struct{}
	lists int
}

func (s *shelf) List(_ context.Context, r kube.Resource, o kube.ListOptions) (kube.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	page := kube.Page{RV: "1"}
	if uid, there := s.uids[r.Name+" "+o.Namespace+" "+o.FieldSelector]; there {
		page.Items = [][]byte{fmt.Appendf(nil, `{"metadata":{"uid":%q}}`, uid)}
	}
	return page, s.err
}

func (s *shelf) Watch(ctx context.Context, _ kube.Resource, _ kube.WatchOptions) (*kube.Watch, error) {
	s.mu.Lock()
	taken := s.taken
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-taken:
		return nil, errors.New("the connection is gone")
	}
}

func (s *shelf) take(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.uids, key)
	close(s.taken)
	s.taken = make(chan struct{})
}

func TestATokenIsReviewedAgainWhenThePodItIsBoundToGoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ours, others := claims(`,"kubernetes.io":{"pod":{"name":"p","uid":"1"}}`), claims(`,"kubernetes.io":{"pod":{"name":"q","uid":"2"}}`)
		f := &api{tokens: map[string]*access.Identity{ours: serviceAccount("b"), others: serviceAccount("b")}}
		a, _ := guarded(t, f, "")
		pods := &shelf{uids: map[string]string{"pods a metadata.name=p": "1", "pods a metadata.name=q": "2"}, taken: make(chan struct{})}
		a.clusters[0].roles = pods
		revised := 0
		var watch sync.WaitGroup
		defer watch.Wait()
		defer cancel()
		watch.Go(func() { a.clusters[0].followBound(ctx) })
		watch.Go(func() {
			for {
				select {
				case <-a.ended:
					revised++
				case <-ctx.Done():
					return
				}
			}
		})
		code := func(token string) codes.Code {
			_, err := a.Authorize(with(t.Context(), "10.0.0.1", token), "/m")
			return rpc.Code(err)
		}
		if code(ours) != codes.OK || code(others) != codes.OK {
			t.Fatal("tokens of pods that are there are refused")
		}
		synctest.Wait()
		version := a.Version()
		pods.take("pods a metadata.name=p")
		time.Sleep(rolesRetry)
		synctest.Wait()
		if revised != 1 || a.Version() != version {
			t.Errorf("open streams were looked at %d times, and decisions went from %d to %d", revised, version, a.Version())
		}
		for range 20 { // the API server knows the token still, and does not know later
			if got := code(ours); got != codes.Unauthenticated {
				t.Fatalf("after the pod went: %v", got)
			}
			time.Sleep(unsettledFor)
		}
		f.set(func() { delete(f.tokens, ours) })
		time.Sleep(withdrawnFor)
		if got := code(ours); got != codes.Unauthenticated {
			t.Errorf("at last: %v", got)
		}
		if got := code(others); got != codes.OK {
			t.Errorf("the token of the other pod: %v", got)
		}
	})
}

func TestAnObjectIsWatchedAsLongAsTokensThatAreBoundToItAreUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		token := claims(`,"kubernetes.io":{"pod":{"name":"p","uid":"1"}}`)
		f := &api{tokens: map[string]*access.Identity{token: serviceAccount("b")}}
		a, _ := guarded(t, f, "")
		pods := &shelf{uids: map[string]string{"pods a metadata.name=p": "1"}, taken: make(chan struct{}), err: &kube.StatusError{Code: 403, Reason: "Forbidden"}}
		c := a.clusters[0]
		c.roles = pods
		var watch sync.WaitGroup
		defer watch.Wait()
		defer cancel()
		watch.Go(func() { c.followBound(ctx) })
		for range 6 { // who may not watch it tries again once a minute
			if _, err := a.Authorize(with(t.Context(), "10.0.0.1", token), "/m"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(reviewedFor)
		}
		synctest.Wait()
		if pods.lists != 2 {
			t.Errorf("%d questions within a minute", pods.lists)
		}
		time.Sleep(2 * boundRefused)
		synctest.Wait()
		if len(c.bearers.used) != 0 || pods.lists != 2 {
			t.Errorf("%v are watched still, after %d questions", c.bearers.used, pods.lists)
		}
	})
}

// closing is an API server whose watches end at once. It counts them by resource, and fails
// after a hundred.
type closing map[string]int

func (c closing) RoundTrip(r *http.Request) (*http.Response, error) {
	body := `{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"uid":"1"}}]}`
	if r.URL.Query().Get("watch") != "" {
		if c[path.Base(r.URL.Path)]++; c[path.Base(r.URL.Path)] > 100 {
			return nil, errAway
		}
		body = ""
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func TestWatchesThatEndAtOnceAreMadeAgainOnceASecond(t *testing.T) {
	t.Parallel()
	for resource, follow := range map[string]func(context.Context, *cluster){
		"pods":           func(ctx context.Context, c *cluster) { c.followObject(ctx, object{"pods", "a", "p", "1"}) },
		accountsResource: func(ctx context.Context, c *cluster) { c.followResource(ctx, c.watches()[0]) },
	} {
		synctest.Test(t, func(t *testing.T) {
			server := closing{}
			client, err := kube.New(&rest.Config{Host: "http://cluster", Transport: server}, kube.Config{})
			if err != nil {
				t.Fatal(err)
			}
			a, _ := guarded(t, &api{}, "")
			c := a.clusters[0]
			c.roles = client
			c.bearers.used[object{"pods", "a", "p", "1"}] = time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*rolesRetry-1)
			defer cancel()
			follow(ctx, c)
			if n := server[resource]; n != 10 {
				t.Errorf("%s: %d watches in 10 s", resource, n)
			}
		})
	}
}

func TestTheTokensOfADeletedServiceAccountAreRefusedWhateverTheAPIServerStillSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		token := claims("")
		robot := serviceAccount("b")
		robot.UID = "1"
		f := &api{tokens: map[string]*access.Identity{token: robot}}
		a, _ := guarded(t, f, "")
		code := func(token string) codes.Code {
			_, err := a.Authorize(with(t.Context(), "10.0.0.1", token), "/m")
			return rpc.Code(err)
		}
		account := func(name, uid string, gone bool) {
			if err := a.clusters[0].account(fmt.Appendf(nil, `{"metadata":{"namespace":"a","name":%q,"uid":%q}}`, name, uid), gone); err != nil {
				t.Fatal(err)
			}
		}
		if got := code(token); got != codes.OK {
			t.Fatal(got)
		}
		account("b", "1", false)
		account("b", "2", true) // another of the name
		if got := code(token); got != codes.OK {
			t.Errorf("while it is there: %v", got)
		}
		account("b", "1", true)
		if got := code(token); got != codes.Unauthenticated {
			t.Errorf("when it is gone: %v", got)
		}

		later := serviceAccount("c")
		later.UID = "3"
		unseen := claims(`,"jti":"3"`)
		f.set(func() { f.tokens[unseen] = later })
		account("c", "3", true)
		if got := code(unseen); got != codes.Unauthenticated {
			t.Errorf("a token that came after its account was gone: %v", got)
		}
		time.Sleep(withdrawnFor + 1)
		account("d", "4", true)
		if gone := a.clusters[0].tokens.gone; len(gone) != 1 {
			t.Errorf("it is kept of %v that they are gone", gone)
		}
	})
}

func TestNoMoreThanSoManyObjectsAreWatched(t *testing.T) {
	t.Parallel()
	b := newBoundObjects()
	for i := range maxBound + 10 {
		b.use(object{"pods", "a", fmt.Sprint(i), "1"}, time.Now())
	}
	if len(b.used) != maxBound || len(b.fresh) != maxBound {
		t.Errorf("%d of %d", len(b.fresh), len(b.used))
	}
}

func TestATokenIsBoundToWhatItsClaimsName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		token string
		want  object
	}{
		"pod":             {claims(`,"kubernetes.io":{"namespace":"x","pod":{"name":"p","uid":"1"},"node":{"name":"n"}}`), object{"pods", "a", "p", "1"}},
		"secret":          {claims(`,"kubernetes.io":{"secret":{"name":"s","uid":"2"}}`), object{"secrets", "a", "s", "2"}},
		"legacy secret":   {claims(`,"kubernetes.io/serviceaccount/secret.name":"old"`), object{"secrets", "a", "old", ""}},
		"nothing":         {claims(""), object{}},
		"no JSON":         {"a.b.c", object{}},
		"opaque":          {"0123456789abcdef", object{}},
		"of another form": {claims(`,"kubernetes.io":[1]`), object{}},
	} {
		if got := boundTo(c.token, "a"); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
