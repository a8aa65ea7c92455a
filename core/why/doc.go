// Package why tells why a key of a work queue waits: what happened to it, what it waits for now and
// what would help.
//
// In come the facts that queue, index and reflector know, gathered by somebody else, and the time.
// Out comes an [Answer]: a timeline, one [Cause] of a closed set, and one sentence. Facts that are
// missing, because a part did not answer, make the answer poorer and never wrong: the sentence says
// which part was silent where that matters.
package why
