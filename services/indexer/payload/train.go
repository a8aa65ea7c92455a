package payload

import (
	"cmp"
	"encoding/binary"
	"errors"
	"iter"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// level is the coder's effort. The next one takes twice the time for 1 to 2 %
// fewer bytes; a dictionary of whole objects leaves little to search for.
const level = zstd.SpeedFastest

const (
	// minSamples is how many samples a dictionary is made of at least.
	minSamples = 16
	// Shared bytes are found by their grams of eight bytes. One in four is looked
	// at, chosen by what it is, and counted in a table of 1<<gramBits.
	gramBits = 20
	// repeated is how many of those a sample must share with others that the
	// dictionary does not have yet.
	repeated = 24
)

// ErrNothingShared is returned by Train for samples with nothing in common.
var ErrNothingShared = errors.New("payload: samples have nothing in common")

// Train makes a dictionary of at most size bytes, and a little for its tables,
// from samples of a collection, in random order. It takes whole samples: each
// time one that has much in common with others and little with what was taken.
// The id must not be zero. It costs some 50 us of one core per sample of 5 KB.
func Train(id uint32, samples [][]byte, size int) (*Dictionary, error) {
	if id == 0 || len(samples) < minSamples {
		return nil, errors.New("payload: a dictionary needs an id and samples")
	}
	chosen := choose(samples, size)
	if len(chosen) == 0 {
		return nil, ErrNothingShared
	}
	// What comes last is cheapest to refer to.
	slices.Reverse(chosen)
	history := make([]byte, 0, size)
	for _, s := range chosen {
		history = append(history, s...)
	}
	// The tables encode what the dictionary leaves, so they are made from other samples.
	rest := samples[len(samples)/2:]
	content, err := build(zstd.BuildDictOptions{
		ID: id, Contents: rest[:min(len(rest), 400)], History: history, Offsets: [3]int{1, 4, 8}, Level: level,
	})
	if err != nil {
		return nil, err
	}
	return Open(content)
}

// build is zstd.BuildDict, which panics on some samples.
func build(o zstd.BuildDictOptions) (content []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = ErrNothingShared
		}
	}()
	return zstd.BuildDict(o)
}

// choose returns samples that together hold what samples share, those that stand
// for most others first, in at most size bytes.
func choose(samples [][]byte, size int) [][]byte {
	known := make(grams, 1<<gramBits)
	seen := make([]int32, 1<<gramBits) // the sample that was counted last
	for i, s := range samples {
		for at := range all(s) {
			if seen[at] != int32(i+1) {
				seen[at] = int32(i + 1)
				known[at] = min(known[at], 1<<15) + 1
			}
		}
	}
	type candidate struct {
		sample []byte
		stands int // over its shared bytes, for how many other samples
	}
	var found []candidate
	for _, s := range samples {
		c := candidate{sample: s}
		shared := 0
		for at := range all(s) {
			if known[at] > 1 {
				shared++
				c.stands += int(known[at]) - 1
			}
		}
		if shared < repeated || len(s) > size {
			continue
		}
		found = append(found, c)
		for at := range all(s) {
			known[at] = 0
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(b.stands, a.stands) })
	var chosen [][]byte
	for _, c := range found {
		if len(c.sample) <= size {
			chosen = append(chosen, c.sample)
			size -= len(c.sample)
		}
	}
	return chosen
}

// grams counts in how many samples a gram was seen.
type grams []uint16

// all yields the places of the grams of s.
func all(s []byte) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i := 0; i+8 <= len(s); i++ {
			h := binary.LittleEndian.Uint64(s[i:]) * 0x9E3779B185EBCA87
			if h>>(62-gramBits)&3 == 0 && !yield(uint32(h>>(64-gramBits))) {
				return
			}
		}
	}
}
