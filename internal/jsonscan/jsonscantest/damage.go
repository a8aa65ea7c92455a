// Package jsonscantest damages JSON, for tests of what reads it.
package jsonscantest

import (
	"bytes"
	"math/rand/v2"
)

// Damage returns a copy of text in which one to three bytes were changed or removed, or which was
// cut. The same seed gives the same damage.
func Damage(text []byte, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 5)) //nolint:gosec // no secrecy
	text = bytes.Clone(text)
	for range 1 + rng.IntN(3) {
		at := rng.IntN(len(text))
		switch rng.IntN(4) {
		case 0:
			text[at] = byte(rng.Uint32())
		case 1:
			text[at] = `{}[]",:\0 e`[rng.IntN(11)]
		case 2:
			text = append(text[:at], text[at+1:]...)
		default:
			if rng.IntN(4) == 0 {
				text = text[:at+1]
			}
		}
	}
	return text
}
