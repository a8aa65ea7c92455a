package gateway

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// selecting is a read of a resource by a field.
func selecting(resource, field string) *request.Read {
	return &request.Read{Path: request.Path{Resource: request.Resource{Version: "v1", Name: resource}}, Declared: []string{field}}
}

func TestNothingIsKeptOfResourcesThatOnlyRequestsName(t *testing.T) {
	t.Parallel()
	var s Service
	for i := range 100 {
		if s.alone(selecting("made-up-"+strconv.Itoa(i), "spec.a"), "unmirrored") {
			t.Fatal("the fields of a resource that nobody looked at are known")
		}
	}
	if n := len(s.declared.all); n != 0 {
		t.Errorf("%d resources are kept", n)
	}
}

func TestReadsGoByTheOlderAnswerWhileFieldsAreAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, away := 0, true
		d := declared{find: func(ctx context.Context, _ kube.Resource) (map[string]bool, error) {
			asked++
			if away {
				<-ctx.Done()
				return nil, errors.New("the index is away")
			}
			return map[string]bool{"spec.a": true}, nil
		}}
		read := selecting("pods", "spec.a")
		has := func(timeout time.Duration) (has bool, took time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			began := time.Now()
			has = d.has(ctx, read, kube.Resource{})
			took = time.Since(began)
			synctest.Wait() // the question may be on its way
			return has, took
		}
		if got, took := has(time.Second); got || took != time.Second {
			t.Errorf("before any answer: %v after %v, want false when the reader gives up", got, took)
		}
		time.Sleep(declaredWithin + declaredRetry)
		away = false
		if got, took := has(time.Minute); !got || took != 0 || asked != 2 {
			t.Errorf("soon after a failure: %v after %v and %d questions", got, took, asked)
		}
		time.Sleep(declaredFor + 1)
		away = true
		if got, took := has(time.Minute); !got || took != 0 || asked != 3 {
			t.Errorf("while it is asked again: %v after %v and %d questions", got, took, asked)
		}
		time.Sleep(declaredWithin + 2*declaredFor)
		if got, took := has(time.Minute); !got || took != declaredWithin {
			t.Errorf("by an answer that is too old: %v after %v", got, took)
		}
	})
}
