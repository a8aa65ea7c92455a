package console

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/services/console/session"
)

func TestAHostThatShowsManyUnknownTokensIsNotPassedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Service{sessions: session.NewManager(nil), unknown: newStrangers()}
		const host = "192.0.2.1:1234"
		passed := 0
		show := func(token, address string) error {
			return s.forwarded(who{token: token}, address, func() error { passed++; return status.Error(codes.Unauthenticated, "nobody knows it") })
		}
		for range 3 * strangerRefusals {
			_ = show("unknown", host)
		}
		if passed != strangerRefusals {
			t.Errorf("%d calls were passed on, want %d", passed, strangerRefusals)
		}
		if err := show("unknown", host); !errors.Is(err, errTooManyTokens) {
			t.Errorf("one more: %v", err)
		}
		passed = 0
		_ = show("unknown", "192.0.2.2:1234")
		_ = show("", host)
		time.Sleep(2 * time.Second)
		_ = show("unknown", host)
		if passed != 3 {
			t.Errorf("%d calls of another host, without a token and after a while were passed on, want 3", passed)
		}
	})
}
