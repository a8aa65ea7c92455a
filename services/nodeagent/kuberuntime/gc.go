package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// CollectGarbage removes dead containers beyond [Config.KeepDead] of a name for pods that keep says
// are wanted, with all every dead one but the newest of a name that does not run; and of the other
// pods, once nothing of them runs, everything: containers, sandboxes, logs, files and delays. It
// goes on past what cannot be removed.
func (m *Manager) CollectGarbage(ctx context.Context, keep func(types.UID) bool, all bool) error {
	pods, err := m.Pods(ctx, true)
	if err != nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	var faults []error
	left := map[types.UID]bool{}
	for _, p := range pods {
		left[p.UID] = true
		switch {
		case keep(p.UID):
			faults = append(faults, m.collectOf(ctx, p, all))
		case !p.Running(): // what still runs is killed by who knows how, and collected after that
			if err := m.collectWhole(ctx, p); err != nil {
				faults = append(faults, err)
			} else {
				delete(left, p.UID)
			}
		}
	}
	wanted := func(uid types.UID) bool { return left[uid] || keep(uid) }
	faults = append(faults, m.collectLogs(wanted), m.collectFiles(wanted))
	now := m.now()
	if err := m.crash.sweep(now, wanted); err != nil {
		m.metrics.stateErrors.Inc()
		faults = append(faults, err)
	}
	faults = append(faults, m.pulls.sweep(now, wanted))
	m.mu.Lock()
	for uid := range m.waiting {
		if !wanted(uid) {
			delete(m.waiting, uid)
		}
	}
	m.mu.Unlock()
	return errors.Join(faults...)
}

// collectOf removes old instances and sandboxes of a pod that lives. The newest instance of each
// name stays when it is dead: it says how the container ended, and that it ran at all.
func (m *Manager) collectOf(ctx context.Context, p container.Pod, all bool) error {
	kept := max(m.cfg.KeepDead, 0)
	if all {
		kept = 0
	}
	var faults []error
	seen, dead, used := map[string]bool{}, map[string]int{}, map[string]bool{}
	for _, c := range p.Containers { // newest first
		newest := !seen[c.Name]
		seen[c.Name] = true
		if c.State == container.Exited {
			dead[c.Name]++
		}
		if newest || c.State != container.Exited || dead[c.Name] <= kept {
			used[c.SandboxID] = true
			continue
		}
		if err := m.collectContainer(ctx, p, c); err != nil {
			faults = append(faults, err)
			used[c.SandboxID] = true
		}
	}
	for i, s := range p.Sandboxes {
		// The newest stays, ready or not: its attempt is the number of the next.
		if i > 0 && !s.Ready && !used[s.ID] {
			faults = append(faults, m.collectSandbox(ctx, s.ID))
		}
	}
	return errors.Join(faults...)
}

// collectWhole removes a pod of which nothing runs.
func (m *Manager) collectWhole(ctx context.Context, p container.Pod) error {
	var faults []error
	for _, c := range p.Containers {
		faults = append(faults, m.collectContainer(ctx, p, c))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	for _, s := range p.Sandboxes {
		faults = append(faults, m.collectSandbox(ctx, s.ID))
	}
	m.log.Debug("pod collected", slog.String("namespace", p.Namespace), slog.String("pod", p.Name))
	return errors.Join(faults...)
}

func (m *Manager) collectContainer(ctx context.Context, p container.Pod, c container.Container) error {
	log := ""
	if dir := m.logDir(p.Namespace, p.Name, p.UID); dir != "" && plain(c.Name) {
		log = filepath.Join(dir, logPath(c.Name, c.Attempt))
	}
	if err := m.remove(ctx, c.ID, log); err != nil {
		return err
	}
	if path := m.messageFile(p.UID, c.Name, c.Attempt); path != "" {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("remove a termination message: %w", err)
		}
	}
	return nil
}

// collectSandbox stops before it removes, as the CRI wants it.
func (m *Manager) collectSandbox(ctx context.Context, id string) error {
	if _, err := m.rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	if _, err := m.rt.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// collectLogs removes the log directories of this node's pods that are gone. Those that carry no
// mark, or another node's, are left: a log root is often shared.
func (m *Manager) collectLogs(wanted func(types.UID) bool) error {
	return m.collectDirs(m.cfg.LogRoot, func(name string) types.UID {
		return types.UID(name[strings.LastIndex(name, "_")+1:])
	}, func(path, name string) bool {
		owner, err := os.ReadFile(filepath.Join(path, ownerFile))
		return err == nil && strings.TrimSpace(string(owner)) == m.cfg.Node && strings.Count(name, "_") == 2
	}, wanted, os.RemoveAll)
}

// collectFiles removes what pods that are gone were given as files; what others put beside it
// stays.
func (m *Manager) collectFiles(wanted func(types.UID) bool) error {
	return m.collectDirs(m.cfg.PodsDir, func(name string) types.UID { return types.UID(name) }, func(_, _ string) bool { return true }, wanted, func(path string) error {
		err := errors.Join(os.RemoveAll(filepath.Join(path, "containers")), os.RemoveAll(filepath.Join(path, "etc-hosts")))
		if entries, e := os.ReadDir(path); e == nil && len(entries) == 0 {
			err = errors.Join(err, os.Remove(path))
		}
		return err
	})
}

func (m *Manager) collectDirs(root string, named func(name string) types.UID, ours func(path, name string) bool, wanted func(types.UID) bool, remove func(string) error) error {
	if root == "" {
		return nil
	}
	entries, err := os.ReadDir(root)
	if os.IsNotExist(err) {
		return nil
	}
	faults := []error{err}
	for _, e := range slices.Clone(entries) {
		path, uid := filepath.Join(root, e.Name()), named(e.Name())
		if e.IsDir() && !wanted(uid) && ours(path, e.Name()) { // a file is read for those alone that may go
			faults = append(faults, remove(path))
		}
	}
	return errors.Join(faults...)
}
