package caller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
	accessv1 "github.com/deltaplane/deltaplane/proto/deltaplane/access/v1"
)

// slow answers a question after a while, or never, and says that it goes by the token.
type slow struct {
	grpc.ClientConnInterface
	after time.Duration
	asked int
}

func (s *slow) Invoke(ctx context.Context, method string, _, reply any, _ ...grpc.CallOption) error {
	if method != accessv1.AccessService_WhoAmI_FullMethodName {
		return nil
	}
	s.asked++
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.after):
		reply.(*accessv1.WhoAmIResponse).Source = accessv1.Source_SOURCE_TOKEN_FILE //nolint:forcetypeassert // it is of this method
		return nil
	}
}

func TestACallWaitsForAnothersQuestionNoLongerThanItMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(&slow{after: time.Hour}, "token", true)
		go func() { _ = c.Invoke(context.Background(), "/first", nil, nil) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := c.Invoke(ctx, "/second", nil, nil); rpc.Code(err) != codes.DeadlineExceeded || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Minute)
	})
}

func TestAServiceIsAskedOnceForCallsOfTheSameTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := &slow{after: time.Second}
		c := New(base, "token", true)
		errs := make(chan error, 10)
		for range cap(errs) {
			go func() { errs <- c.Invoke(t.Context(), "/call", nil, nil) }()
		}
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if base.asked != 1 {
			t.Errorf("it was asked %d times", base.asked)
		}
		time.Sleep(askedFor)
		if err := c.Invoke(t.Context(), "/call", nil, nil); err != nil || base.asked != 2 {
			t.Errorf("it was asked %d times in all: %v", base.asked, err)
		}
	})
}
