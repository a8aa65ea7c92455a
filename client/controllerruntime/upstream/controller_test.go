package upstream

import (
	"path/filepath"
	"testing"

	"github.com/deltaplane/deltaplane/internal/upstream"
)

// What takes the place of constructors is added to a file, ahead of where its specs begin.
const (
	newManager = `
func newManager(cfg *rest.Config, o manager.Options) (manager.Manager, error) {
	if err := swaptest.Manager(&o.NewCache, &o.NewClient); err != nil {
		return nil, err
	}
	return manager.New(cfg, o)
}
`
	newController = `
func newController(name string, m manager.Manager, o controller.Options) (controller.Controller, error) {
	swaptest.Controller(m.GetCache(), &o.Reconciler, &o.NewQueue)
	return controller.New(name, m, o)
}
`
)

// adds adds functions to a file.
func adds(functions, before string) upstream.Patch {
	return upstream.Patch{Old: "\n" + before, New: functions + "\n" + before}
}

// inside runs the suite of a package on what it has in place of its own.
func inside(t *testing.T, list, from string, files map[string][]upstream.Patch) {
	needsPrograms(t)
	program := upstream.CompileInside(t, upstream.Source{Module: module, From: from, Files: files})
	suite{program: program, dir: filepath.Dir(program), list: "testdata/" + list}.run(t)
}

func TestPkgController(t *testing.T) {
	ours := []upstream.Patch{{Old: "manager.New(", New: "newManager("}, {Old: " controller.New(", New: " newController("}}
	inside(t, "controller.txt", "pkg/controller", map[string][]upstream.Patch{
		"controller_test.go": append(ours,
			imports("k8s.io/client-go/rest", swaptest),
			adds(newManager+newController, `var _ = Describe("controller.Controller"`)),
		"controller_integration_test.go": ours,
	})
}

func TestPkgInternalController(t *testing.T) {
	inside(t, "internal_controller.txt", "pkg/internal/controller", map[string][]upstream.Patch{
		"controller_test.go": {
			{Old: "workqueue.NewTyped[", New: "swaptest.Queue["},
			{Old: `priorityqueue.New[reconcile.Request]("controller1")`, New: "swaptest.Queue[reconcile.Request]()"},
			{Old: "cache.New(", New: "swaptest.NewCache("},
			{Old: "manager.New(", New: "newManager("},
			// Those of a table stop the API server to be rid of connections.
			{Old: "\n\t\t\t\ttestenv = &envtest.Environment{}", New: "\n\t\t\t\ttestenv = &envtest.Environment{UseExistingCluster: new(false)}"},
			imports("k8s.io/client-go/rest", swaptest),
			adds(newManager, `var _ = Describe("controller",`),
		},
	})
}

func TestPkgManager(t *testing.T) {
	inside(t, "manager.txt", "pkg/manager", map[string][]upstream.Patch{
		"manager_test.go": {
			{Old: " New(cfg, ", New: " newManager(cfg, "},
			imports(swaptest),
			adds(`
func newManager(cfg *rest.Config, o Options) (Manager, error) {
	if err := swaptest.Manager(&o.NewCache, &o.NewClient); err != nil {
		return nil, err
	}
	return New(cfg, o)
}
`, `var _ = Describe("manger.Manager"`),
		},
	})
}
