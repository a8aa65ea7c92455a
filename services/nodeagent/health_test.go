package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

// answers is a runtime that answers what a test says.
type answers struct {
	mu     sync.Mutex
	status kuberuntime.Conditions
	err    error
	old    bool
}

func (a *answers) Status(context.Context) (kuberuntime.Conditions, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status, a.err
}

func (a *answers) check(context.Context) (cri.Version, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.old {
		return cri.Version{}, cri.ErrVersion
	}
	return cri.Version{Name: "test", Version: "1", API: "v1"}, nil
}

func (a *answers) say(c kuberuntime.Conditions, err error, old bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status, a.err, a.old = c, err, old
}

func TestHealthOfARuntime(t *testing.T) {
	t.Parallel()
	well := kuberuntime.Conditions{Ready: true, NetworkReady: true}
	synctest.Test(t, func(t *testing.T) {
		rt := &answers{}
		rt.say(well, nil, true)
		h := newHealth(rt, rt.check, slog.New(slog.DiscardHandler))
		changes := 0
		h.changed = func() { changes++ }
		if h.err() == nil {
			t.Error("err() = nil before the runtime was asked")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); h.run(ctx) }()
		defer func() { cancel(); <-done }()
		is := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			err := h.err()
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("err() = %v, want %q", err, want)
			}
		}
		is(6*time.Second, "runtime.v1")
		rt.say(well, nil, false)
		is(6*time.Second, "")
		if got := h.runtimeVersion(); got != "test://1" {
			t.Errorf("runtimeVersion() = %q", got)
		}
		rt.say(kuberuntime.Conditions{ReadyMessage: "plugin not loaded"}, nil, false)
		is(6*time.Second, "plugin not loaded")
		rt.say(well, nil, false)
		is(2*time.Second, "")
		rt.say(well, errors.New("too slow"), false)
		is(12*time.Second, "") // one answer that is late says nothing yet
		is(20*time.Second, "too slow")
		rt.say(kuberuntime.Conditions{Ready: true, NetworkReadyMessage: "no plugin"}, nil, false)
		is(2*time.Second, "")
		if err := h.network(); err == nil || err.Error() != "no plugin" {
			t.Errorf("network() = %v", err)
		}
		rt.say(well, status.Error(codes.Unavailable, "refused"), false)
		is(6*time.Second, "refused") // that is certain at once
		if h.network() != nil || h.runtimeVersion() != "" {
			t.Errorf("a runtime that is away has network %v and version %q", h.network(), h.runtimeVersion())
		}
		if changes != 6 {
			t.Errorf("%d changes were told, want 6", changes)
		}
	})
}
