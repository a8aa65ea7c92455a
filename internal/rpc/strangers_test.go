package rpc_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// nameless refuses who has no token; the token that it takes is "known".
func nameless(t *testing.T) (rpc.Authorizer, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("0123456789abcdef-known caller\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := rpc.NewTokens(rpc.AuthConfig{TokenFile: path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tokens, "Bearer 0123456789abcdef-known"
}

// call makes a call with headers.
func (a *attacker) call(headers ...string) uint32 {
	a.t.Helper()
	id := a.begin(echoCall, headers...)
	a.send(id, true, framed(false, nil))
	return id
}

func TestAConnectionThatIsRefusedAgainAndAgainIsClosed(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	auth, token := nameless(t)
	addr := listening(t, rpc.ServerConfig{}, rpc.Options{Registry: reg, Authorizer: auth}, &echo{call: func(context.Context, string) error { return nil }})
	stranger := attack(t, addr)
	trying := make(chan struct{})
	go func() {
		defer close(trying)
		for err := error(nil); err == nil; { // more often than it may be refused
			_, err = stranger.tryBegin(echoCall)
		}
	}()
	for err := error(nil); err == nil; {
		_, err = stranger.fr.ReadFrame()
	}
	<-trying
	if n := gathered(t, reg, "deltaplane_rpc_refused_total", "reason", "connection_closed"); n == 0 {
		t.Error("the end of the connection is not counted")
	}
	a := attack(t, addr)
	if code, _ := a.outcome(a.call("authorization", token)); code != 0 {
		t.Fatalf("a call with a token: %v", code)
	}
	for range 1000 { // a client whose token is over, for one
		a.call()
	}
	if code, _ := a.outcome(a.call("authorization", token)); code != 0 {
		t.Errorf("a known client is not served after refusals: %v", code)
	}
}
