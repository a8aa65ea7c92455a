package testing_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// only are rates of which all but those that are set are none.
func only(set func(*dptest.Rates)) dptest.Rates {
	r := dptest.Rates{
		StaleReads: -1, FailedReads: -1, BrokenStreams: -1, DuplicateKeys: -1, LateKeys: -1, LostLeases: -1, KilledWorkers: -1,
		Conflicts: -1, LostAnswers: -1, RefusedCalls: -1,
	}
	set(&r)
	return r
}

func configMap(name, colour string) *object {
	return &object{APIVersion: "v1", Kind: "ConfigMap", Metadata: metadata{Namespace: "default", Name: name}, Data: map[string]string{"colour": colour}}
}

func apiOf(t *testing.T, env *dptest.Env) api {
	t.Helper()
	a := api{url: env.API(), http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(a.http.CloseIdleConnections)
	return a
}

// answers creates ConfigMaps and returns how many answers there were by code; 0 is a
// connection that broke.
func answers(t *testing.T, a api, n int) map[int]int {
	t.Helper()
	codes := map[int]int{}
	for i := range n {
		_, err := a.write(t.Context(), configMap(fmt.Sprint("c", i), "red"))
		code := 0
		if refused, ok := errors.AsType[*refusedError](err); ok {
			code = refused.code
		} else if err == nil {
			code = http.StatusCreated
		}
		codes[code]++
	}
	return codes
}

func TestAWriteWhoseAnswerIsLostWasCarriedOut(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Seed: 1, Rates: only(func(r *dptest.Rates) { r.LostAnswers = 1 })})
	const n = 20
	codes := answers(t, apiOf(t, env), n)
	if codes[0] == 0 || codes[http.StatusGatewayTimeout] == 0 || codes[0]+codes[http.StatusGatewayTimeout] != n {
		t.Errorf("answers by code: %v, want broken connections and timeouts", codes)
	}
	if got := len(dptest.List[object](env, "configmaps")); got != n {
		t.Errorf("%d of %d writes were carried out", got, n)
	}
	if _, err := apiOf(t, env).write(t.Context(), configMap("c0", "red")); err == nil || errorCode(err) != http.StatusConflict {
		t.Errorf("a write that the API server refuses: %v, want its answer, 409", err)
	}
	env.Calm()
	if codes := answers(t, apiOf(t, env), n+1); codes[http.StatusCreated] != 1 || codes[http.StatusConflict] != n {
		t.Errorf("answers after Calm: %v", codes)
	}
}

func errorCode(err error) int {
	if refused, ok := errors.AsType[*refusedError](err); ok {
		return refused.code
	}
	return 0
}

func TestARefusedWriteWasNotCarriedOut(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Seed: 1, Rates: only(func(r *dptest.Rates) { r.RefusedCalls = 1 })})
	const n = 20
	codes := answers(t, apiOf(t, env), n)
	if codes[0] == 0 || codes[http.StatusServiceUnavailable] == 0 || codes[0]+codes[http.StatusServiceUnavailable] != n {
		t.Errorf("answers by code: %v, want broken connections and 503", codes)
	}
	if got := len(dptest.List[object](env, "configmaps")); got != 0 {
		t.Errorf("%d writes were carried out", got)
	}
}

func TestOnlyAConditionalWriteMeetsAConflict(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Seed: 1, Rates: only(func(r *dptest.Rates) { r.Conflicts = 1 })})
	a := apiOf(t, env)
	if _, err := a.write(t.Context(), configMap("c", "red")); err != nil {
		t.Fatalf("a create: %v", err)
	}
	created, err := a.send(t.Context(), http.MethodPut, "/c", configMap("c", "red"))
	if err != nil {
		t.Fatalf("a write without a precondition: %v", err)
	}
	want := configMap("c", "blue")
	want.Metadata.ResourceVersion = created.Metadata.ResourceVersion
	if _, err := a.write(t.Context(), want); errorCode(err) != http.StatusConflict {
		t.Errorf("a write of the version that was read: %v, want 409", err)
	}
	if c := dptest.Get[object](env, "configmaps", "default/c"); c == nil || c.Data["colour"] != "red" {
		t.Errorf("the write was carried out: %+v", c)
	}
	env.Calm()
	if _, err := a.write(t.Context(), want); err != nil {
		t.Errorf("the same write after Calm: %v", err)
	}
}
