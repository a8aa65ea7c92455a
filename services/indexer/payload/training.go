package payload

import (
	"math/rand/v2"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
)

const (
	// A dictionary takes no more than this share of the collection.
	dictionaryShare = 32
	leastDictionary = 16 << 10
	// A dictionary is recreated when the collection is n times as large as
	// when it was made.
	grown = 4
	// It is recreated when objects compress to more than this many times what the
	// first ones did, judged by so many of them.
	decayed      = 1.4
	judgedBytes  = 1 << 20
	retrainAfter = time.Minute
	// Where no dictionary could be made of other samples either, it is tried again
	// once so much has come, as a share of the collection.
	mostTries = 3
	renewed   = 0.5
)

// training is what a keeper remembers of its dictionary.
type training struct {
	at    time.Time
	size  int     // of the collection then
	first float64 // share of their size that objects took at first; zero until known
	last  float64 // and lately
}

// learn notes how much was compressed and into how much.
func (m *training) learn(in, out int) {
	if in < judgedBytes {
		return
	}
	m.last = float64(out) / float64(in)
	if m.first == 0 {
		m.first = m.last
	}
}

// due reports whether another dictionary would do better.
func (m *training) due(size int, now time.Time) bool {
	if m.size == 0 || size > grown*m.size {
		return true
	}
	return m.first > 0 && m.last > decayed*m.first && now.Sub(m.at) > retrainAfter
}

// prepare sees to it that there is an encoder with a dictionary that fits; false
// when there can be none yet.
func (k *Keeper) prepare(snap *store.Snapshot, now time.Time) bool {
	size := snap.Bytes()
	current := k.dictionary.Load()
	if current == nil && size < k.cfg.Least {
		return false
	}
	if current != nil && k.made.size == 0 { // adopted
		k.made = training{at: now, size: size}
	}
	if current == nil && k.tries == mostTries {
		if k.put.Load() < k.again {
			return false
		}
		k.tries = 0
	}
	if k.made.due(size, now) {
		d, err := Train(k.lastID+1, k.sample(snap), min(max(size/dictionaryShare, leastDictionary), k.cfg.Dictionary))
		switch {
		case err == nil:
			k.lastID++
			k.trainings.Add(1)
			k.encoder = nil
			d.count.Store(&k.failed)
			k.dictionary.Store(d)
			current = d
		case current == nil:
			k.tries++
			k.again = k.put.Load() + int64(renewed*float64(size))
			return false
		}
		k.made = training{at: now, size: size}
	}
	if k.encoder == nil {
		var err error
		if k.encoder, err = current.Encoder(); err != nil {
			return false
		}
	}
	return true
}

// sample picks payloads of the collection, in random order.
func (k *Keeper) sample(snap *store.Snapshot) [][]byte {
	n := 0
	var picked []*store.Object
	for o := range snap.All("") {
		if o.Faulty() || o.Size() == 0 {
			continue
		}
		n++
		switch i := rand.IntN(n); { //nolint:gosec // any choice will do
		case len(picked) < k.cfg.Samples:
			picked = append(picked, o)
			picked[i], picked[n-1] = picked[n-1], picked[i]
		case i < len(picked):
			picked[i] = o
		}
	}
	samples := make([][]byte, 0, len(picked))
	for _, o := range picked {
		if b, err := o.Payload(); err == nil {
			samples = append(samples, b[:min(len(b), k.cfg.Dictionary/4)])
		}
	}
	return samples
}
