package kuberuntime

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
)

// stateVersion is the format of the file; another is not read.
const stateVersion = 1

type state struct {
	Version int              `json:"version"`
	Entries map[string]entry `json:"entries"`
}

// parseState reads a file of delays. No matter who wrote it, the delays that come out are none below zero.
func parseState(raw []byte) (map[string]entry, error) {
	var s state
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, err
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("version %d, want %d", s.Version, stateVersion)
	}
	for key, e := range s.Entries {
		if key == "" || e.Delay < 0 || e.Updated < 0 {
			return nil, fmt.Errorf("entry %q: a time below zero, or no key", key)
		}
	}
	if s.Entries == nil {
		return nil, errors.New("it has no entries")
	}
	return s.Entries, nil
}

// save makes the file hold version v of the entries or a later one. Those who come while it is written
// share the next write. A reader sees the old file or the new one; a file torn by a crash of
// the whole machine is found out by its reader, and then every container is gone as well.
func (b *backoffs) save(v uint64) error {
	if b.file == "" {
		return nil
	}
	b.saving.Lock()
	defer b.saving.Unlock()
	if b.saved >= v {
		return nil
	}
	b.mu.Lock()
	now, s := b.version, state{stateVersion, maps.Clone(b.entries)}
	b.mu.Unlock()
	raw, err := json.Marshal(s)
	if err == nil {
		err = replace(b.file, raw)
	}
	if err != nil {
		return fmt.Errorf("write the state of restarts: %w", err)
	}
	b.saved = now
	return nil
}

// replace writes a file so that a reader finds the old content or the new.
func replace(file string, raw []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	tmp := file + ".new"
	if err := os.WriteFile(tmp, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}
