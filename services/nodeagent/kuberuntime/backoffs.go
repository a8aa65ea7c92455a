package kuberuntime

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/backoff"
)

// BackoffKey is what a container's restarts are counted under: FNV-64a of the pod's name, namespace
// and UID and of the container's name, image and resources, so that a change of image or resources
// starts over.
func BackoffKey(pod *corev1.Pod, c *corev1.Container) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.Join([]string{pod.Name, pod.Namespace, string(pod.UID), c.Name, c.Image, c.Resources.String()}, "/")))
	return strconv.FormatUint(h.Sum64(), 16)
}

// backoffs are delays by key, kept in a file when there is one. Safe for concurrent use.
type backoffs struct {
	growth backoff.Growth
	file   string
	log    *slog.Logger
	// lost is when the manager began without the state of before, zero when it had it: instances made
	// before then are evidence that stands in for entries.
	lost time.Time

	mu      sync.Mutex
	entries map[string]entry // guarded by mu
	version uint64           // counts changes of entries; guarded by mu

	saving sync.Mutex
	saved  uint64 // the version in the file; guarded by saving
}

// entry is a delay and whose it is.
type entry struct {
	backoff.Entry
	Pod types.UID `json:"pod"`
}

// newBackoffs reads the state in file; "" keeps none. What cannot be read is warned of and started
// over.
func newBackoffs(b Backoff, file string, now time.Time, log *slog.Logger) *backoffs {
	out := &backoffs{
		growth: backoff.Growth{Initial: b.Initial.Microseconds(), Max: b.Max.Microseconds(), ExpireAfter: b.Reset.Microseconds()},
		file:   file, log: log, entries: map[string]entry{},
	}
	if file == "" {
		out.lost = now
		return out
	}
	raw, err := os.ReadFile(file)
	if err == nil {
		out.entries, err = parseState(raw)
	}
	for key, e := range out.entries { // the maximum may have been lowered since
		e.Delay = min(e.Delay, out.growth.Max)
		out.entries[key] = e
	}
	if err != nil {
		out.entries, out.lost = map[string]entry{}, now
		if !errors.Is(err, fs.ErrNotExist) {
			log.Warn("the state of restarts cannot be read, it is rebuilt from dead containers", slog.String("file", file), slog.Any("error", err))
		}
	}
	return out
}

// left says how long a key still waits after something that happened at event, and its whole delay;
// zero or less is not in back-off.
func (b *backoffs) left(key string, event, now time.Time) (left, delay time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[key].Entry
	return time.Duration(b.growth.Since(e, event.UnixMicro(), now.UnixMicro())) * time.Microsecond, time.Duration(e.Delay) * time.Microsecond
}

// counted is from when a key's delay counts: from event, or, when that cannot be, as a runtime does
// not know it or a clock was set back, from the entry's last change. So nothing waits for ever, and
// nothing is restarted without end.
func (b *backoffs) counted(key string, event, now time.Time) time.Time {
	b.mu.Lock()
	e, known := b.entries[key]
	b.mu.Unlock()
	delay, updated := time.Duration(e.Delay)*time.Microsecond, time.UnixMicro(e.Updated)
	switch {
	case !event.IsZero() && !event.After(now.Add(delay)):
		return event
	case !known:
		return now
	case updated.After(now):
		return now.Add(-delay)
	}
	return updated
}

// leftSinceUpdate is left counted from the entry's last change; nothing when the clock was set back
// since.
func (b *backoffs) leftSinceUpdate(key string, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[key].Entry
	if left := b.growth.SinceUpdate(e, now.UnixMicro()); left <= e.Delay {
		return time.Duration(left) * time.Microsecond
	}
	return 0
}

// next moves a key on, and returns its new delay once it is in the file. The error is of the file:
// the delay holds as long as the agent lives.
func (b *backoffs) next(key string, pod types.UID, event, now time.Time) (time.Duration, error) {
	b.mu.Lock()
	e := entry{b.growth.Next(b.entries[key].Entry, event.UnixMicro(), now.UnixMicro(), 0), pod}
	b.entries[key] = e
	b.version++
	v := b.version
	b.mu.Unlock()
	return time.Duration(e.Delay) * time.Microsecond, b.save(v)
}

// rebuild puts back what was lost of a key, from the number of the newest dead instance and when it
// was started: the delays that its restarts came to, had none been reset. It does nothing for a key
// that is known, for an instance made since the agent began or without times, and for one that was
// no restart.
func (b *backoffs) rebuild(key string, pod types.UID, restarts int, created, started time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.entries[key]; known || b.lost.IsZero() || restarts < 1 || started.IsZero() || !created.Before(b.lost) {
		return
	}
	delay := b.growth.Initial
	for i := 1; i < restarts && delay < b.growth.Max; i++ {
		delay = min(2*delay, b.growth.Max)
	}
	b.entries[key] = entry{backoff.Entry{Delay: delay, Updated: started.UnixMicro()}, pod}
	b.version++
}

// remove forgets a key.
func (b *backoffs) remove(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.entries[key]; known {
		delete(b.entries, key)
		b.version++
	}
}

// sweep forgets what is expired and what belongs to pods that are gone; the file follows. An entry
// stays for its own delay longer: a container that ends right before the expiry still waits then.
func (b *backoffs) sweep(now time.Time, keep func(types.UID) bool) error {
	b.mu.Lock()
	before := len(b.entries)
	maps.DeleteFunc(b.entries, func(_ string, e entry) bool {
		return b.growth.Expired(e.Entry, now.UnixMicro()-e.Delay) || !keep(e.Pod)
	})
	if len(b.entries) != before {
		b.version++
	}
	v := b.version
	b.mu.Unlock()
	return b.save(v)
}

// stateVersion is the format of the file; another is not read.
const stateVersion = 1

type state struct {
	Version int              `json:"version"`
	Entries map[string]entry `json:"entries"`
}

// parseState reads a file of delays. Whatever it says, no delay that is returned is below zero.
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

// save makes the file hold version v of the entries or a later one. Those who come while it is
// written share the next write. A reader sees the old file or the new one; a file torn by a crash
// of the whole machine is found out by its reader, and then every container is gone as well.
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
