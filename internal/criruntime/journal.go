package criruntime

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/dirlock"
	"github.com/deltaplane/deltaplane/internal/journal"
)

// ErrCorrupt says that the journal holds something that was never written to it.
var ErrCorrupt = errors.New("criruntime: journal is corrupt")

const (
	journalFile = "journal"
	// journalFormat names the journal of this release. The one before was lines of text.
	journalFormat journal.Format = "\xd1Dr1"
)

// open takes the directory, reads its journal and rewrites it. Records are not synced:
// a journal outlives the process, not the machine, and nor do containers.
func (s *Server) open() error {
	if s.cfg.Dir == "" {
		return nil
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("criruntime: %w", err)
	}
	lock, err := dirlock.Lock(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("criruntime: %w", err)
	}
	s.lock = lock
	path := filepath.Join(s.cfg.Dir, journalFile)
	if err := load(path, s.state); err != nil {
		return errors.Join(err, s.closeFiles())
	}
	if s.journal, err = journal.Create(path, journal.Options{Format: journalFormat}, s.state.write); err != nil {
		return errors.Join(fmt.Errorf("criruntime: %w", err), s.closeFiles())
	}
	return nil
}

func (s *Server) closeFiles() error {
	var faults []error
	if s.journal != nil {
		faults = append(faults, s.journal.Close(ErrClosed))
	}
	if s.lock != nil {
		faults = append(faults, s.lock.Close())
	}
	return errors.Join(faults...)
}

// load applies every record of a journal. What a kill tore off its end does not count.
func load(path string, into *state) error {
	end, err := journal.Read(path, journalFormat, func(body []byte) error {
		var r record
		if err := json.Unmarshal(body, &r); err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if err := into.apply(r); err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		return nil
	})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, journal.ErrFormat):
		return fmt.Errorf("criruntime: %w; move the file away to begin without containers", err)
	case err == nil && end.Damaged:
		return fmt.Errorf("%s: %w: %w", path, ErrCorrupt, end.Err())
	}
	return err
}

// keep writes a record down. The mutex is held.
func (s *Server) keep(r record) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = s.journal.Append(func(b []byte) []byte { return append(b, body...) })
	return err
}

// compact leaves in the journal what the state needs, once that pays. The mutex is held.
func (s *Server) compact() error {
	if !s.journal.Grown(s.cfg.CompactAt) {
		return nil
	}
	return s.journal.Rewrite(func(w *journal.Writer) error {
		w.Drop(s.journal.End())
		return s.state.write(w)
	})
}

// write writes the shortest history that leads to a state.
func (s *state) write(w *journal.Writer) error {
	give := func(r record) error {
		body, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return w.Append(func(b []byte) []byte { return append(b, body...) })
	}
	if err := give(record{Op: opBegin}); err != nil { // a journal has a record also when nothing is kept
		return err
	}
	return s.records(give)
}

// records gives the records of the state.
func (s *state) records(give func(record) error) error {
	for _, name := range slices.Sorted(maps.Keys(s.pulled)) {
		op := opImage
		if !s.pulled[name] {
			op = opImageRemoved
		}
		if err := give(record{Op: op, ID: name}); err != nil {
			return err
		}
	}
	for id, box := range s.sandboxes {
		if err := box.records(id, give); err != nil {
			return err
		}
	}
	return nil
}

func (s *sandbox) records(id string, give func(record) error) error {
	config, err := proto.Marshal(&runtimeapi.PodSandboxConfig{
		Metadata: s.item.Metadata, LogDirectory: s.logDir, Labels: s.item.Labels, Annotations: s.item.Annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: s.options}},
	})
	if err != nil {
		return err
	}
	if err := give(record{Op: opSandbox, ID: id, At: s.item.CreatedAt, Config: config, IP: s.ip}); err != nil {
		return err
	}
	for id, c := range s.containers {
		if err := c.records(id, give); err != nil {
			return err
		}
	}
	if s.ready() {
		return nil
	}
	return give(record{Op: opSandboxStopped, ID: id})
}

func (c *container) records(id string, give func(record) error) error {
	logPath := ""
	if c.logPath != "" {
		rel, err := filepath.Rel(c.sandbox.logDir, c.logPath)
		if err != nil {
			return err
		}
		logPath = rel
	}
	config, err := proto.Marshal(&runtimeapi.ContainerConfig{
		Metadata: c.item.Metadata, Image: c.item.Image, Labels: c.item.Labels, Annotations: c.item.Annotations, Mounts: c.mounts, LogPath: logPath,
	})
	if err != nil {
		return err
	}
	out := []record{{Op: opContainer, ID: id, Sandbox: c.sandbox.item.Id, At: c.item.CreatedAt, Config: config}}
	if c.startedAt != 0 {
		out = append(out, record{Op: opStarted, ID: id, At: c.startedAt, Due: c.due, Code: c.dueCode})
	}
	if c.item.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		out = append(out, record{Op: opExited, ID: id, At: c.finishedAt, Code: c.exitCode, Reason: c.reason, Message: c.message})
	}
	for _, r := range out {
		if err := give(r); err != nil {
			return err
		}
	}
	return nil
}
