package logs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// history is what happens to a population of pods, fixed in advance: event i
// is of pod i modulo their number and has the resource version after that of the
// event before. Most events change nothing but the version; every tenth pod is
// deleted, recreated with another UID and changed, in turn. So the state and
// the body of every object after any number of events is known without
// keeping any. Bodies are in a file; a history is safe for concurrent use.
type history struct {
	file *os.File
	pods []historyPod
	full int // bytes of all pods as an API server sends them
	bare int // bytes of all pods as a log holds them
}

// historyPod is a pod as it was at the beginning: where its JSON is in the
// file, and in it the version, the UID and the managed fields.
type historyPod struct {
	key      delta.Key
	at       int64
	size     int
	rv, uid  int
	cut, end int // of the managed fields, with the comma before them; equal without
}

// objectHead begins the JSON of every pod but that of an item of a list.
const objectHead = `"kind":"Pod","apiVersion":"v1",`

// writeHistory makes a population and writes it to a file, with managed fields when asked to.
func writeHistory(path string, seed uint64, pods, templates int, managed bool) (*history, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	h, out, at := &history{file: file}, bufio.NewWriterSize(file, 1<<20), int64(0)
	var m population.Managers
	for template, p := range population.NewGenerator(seed, templates).Each(pods) {
		bare := population.Payload(p)
		text := bare
		if managed {
			full, err := m.Manage(template, p)
			if err != nil {
				return nil, errors.Join(err, file.Close())
			}
			text = population.Payload(full)
		}
		one, err := placesIn(text, bare)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err), file.Close())
		}
		one.key, one.at = delta.NewKey(p.Namespace, p.Name), at
		h.pods = append(h.pods, one)
		at += int64(len(text))
		h.full, h.bare = h.full+len(text), h.bare+len(bare)
		if _, err := out.Write(text); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	if err := out.Flush(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return h, nil
}

// placesIn finds what changes in a pod's JSON. Without its managed fields it must be bare.
func placesIn(text, bare []byte) (historyPod, error) {
	place := func(name string) int {
		mark := []byte(`"` + name + `":"`)
		return bytes.Index(text, mark) + len(mark)
	}
	p := historyPod{size: len(text), rv: place("resourceVersion"), uid: place("uid")}
	if len(text) > len(bare) {
		p.cut = bytes.Index(text, []byte(`,"managedFields":[`))
		p.end = p.cut + len(text) - len(bare)
	}
	if p.cut < 0 || !bytes.Equal(append(bytes.Clone(text[:p.cut]), text[p.end:]...), bare) {
		return p, errors.New("more than managed fields differs from the bare pod")
	}
	if !bytes.HasPrefix(text, []byte("{"+objectHead)) {
		return p, errors.New("it does not begin with kind and apiVersion")
	}
	return p, nil
}

func (h *history) close() error { return h.file.Close() }

// first is the resource version of the population before any event.
func (h *history) first() int { return population.FirstRV + len(h.pods) }

// incarnation is one state of one pod.
type incarnation struct {
	pod, rv int
	kind    string // of the event that made it
	birth   int    // how often it was created before
}

// event is event i, from 0.
func (h *history) event(i int) incarnation {
	pod, visit := i%len(h.pods), i/len(h.pods)
	x := incarnation{pod: pod, rv: h.first() + 1 + i, kind: kube.EventModified}
	if pod%10 == 9 {
		x.kind, x.birth = [...]string{kube.EventDeleted, kube.EventAdded, kube.EventModified}[visit%3], (visit+2)/3
	}
	return x
}

// state is a pod after so many events; false when it does not exist.
func (h *history) state(pod, events int) (incarnation, bool) {
	if events <= pod {
		return incarnation{pod: pod, rv: population.FirstRV + pod, kind: kube.EventAdded}, true
	}
	x := h.event(pod + (events-pod-1)/len(h.pods)*len(h.pods))
	return x, x.kind != kube.EventDeleted
}

// body is the object of an incarnation as a watch sends it. It may use dst.
func (h *history) body(x incarnation, dst []byte) ([]byte, error) {
	p := &h.pods[x.pod]
	if cap(dst) < p.size {
		dst = make([]byte, p.size)
	}
	dst = dst[:p.size]
	if _, err := h.file.ReadAt(dst, p.at); err != nil {
		return nil, err
	}
	copy(dst[p.rv:], strconv.Itoa(x.rv)) // all have ten digits
	if x.birth > 0 {
		copy(dst[p.uid:], fmt.Sprintf("%08x", x.birth))
	}
	return dst, nil
}

// hash is the state hash after so many events, of payloads as a log holds them.
func (h *history) hash(events int) (string, error) {
	state := map[delta.Key]system.ObjectState{}
	var text []byte
	for i := range h.pods {
		x, alive := h.state(i, events)
		if !alive {
			continue
		}
		var err error
		if text, err = h.body(x, text); err != nil {
			return "", err
		}
		p := &h.pods[i]
		if p.end > p.cut {
			text = append(text[:p.cut], text[p.end:]...)
		}
		state[p.key] = system.ObjectState{RV: strconv.Itoa(x.rv), Hash: delta.Hash(text)}
	}
	return system.HashOf(state), nil
}

// versions is the hash of keys and versions after so many events.
func (h *history) versions(events int) string {
	var all []string
	for i := range h.pods {
		if x, alive := h.state(i, events); alive {
			all = append(all, string(h.pods[i].key)+"="+strconv.Itoa(x.rv))
		}
	}
	return system.VersionHash(all)
}
