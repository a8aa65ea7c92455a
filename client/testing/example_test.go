package testing_test

import (
	"context"
	"errors"
	"testing"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// A test function calls Run with its t. The controller is built by a function that main
// calls as well.
func ExampleRun() {
	var t *testing.T
	cfg := dptest.Config{Resources: []string{"pods", "configmaps"}}
	dptest.Run(t, cfg, 30, func(t *testing.T, env *dptest.Env) {
		ctl := controller.New(env.Index(), env.Queue(), controller.Options{Name: "notes"}).For("pods").Owns("configmaps")
		env.Go(func(ctx context.Context) error {
			return ctl.Run(ctx, func(ctx context.Context, req controller.Request) (controller.Result, error) {
				_, err := controller.Get[object](ctx, ctl, "pods", req.Key())
				if errors.Is(err, client.ErrKeyNotFound) {
					return controller.Result{}, nil
				}
				return controller.Result{}, err // and a write to env.API()
			})
		})
		env.Apply(pod("a", "red"))
		if err := env.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
		if note := dptest.Get[object](env, "configmaps", "default/a"); note == nil {
			t.Error("pod a has no note")
		}
	})
}
