// Package jsonscan goes through JSON text without decoding it. A [Scanner] has the whole text in
// hand, a [Reader] gets it in pieces; both call back for each member of an object or element of an
// array, return values as they are written, and tell where they are.
//
// A strict scanner accepts exactly what [encoding/json.Valid] does, as deep as MaxDepth says. One
// that is not strict is for text that was validated before: it looks into what it passes only as
// far as it must to find the end, so that it is about as fast as memory, and on other text it may
// accept too much, but never reads outside and never panics.
//
// Nothing is allocated for a text that nests no deeper than 64. encoding/json decodes, gjson
// neither validates on the way nor bounds the nesting, and jsontext is not in the standard library
// yet and validates all that it skips, which takes several times as long.
package jsonscan
