// Package replica holds the pure rules for an owner that keeps a number of
// identical children: how children are named, which ordinals have been given
// out, how fast they are created, which are deleted first, and how long to wait
// after failures. It does no I/O and gets the time as an argument.
//
// # Names
//
// A child's name is [Name](owner name, owner UID, ordinal): any caller that creates
// ordinal 5 of an owner uses the same name, so the API server admits only one
// of them at a time. [Ledger] hands ordinals out upwards and never twice, with
// one exception: an ordinal whose creation has an unknown outcome is tried again
// under the same name, by the same owner, before a new one is used.
//
// # What the ledger promises
//
// Let a claim be (ordinal, token): the creation of one ordinal by the holder of
// one lease. A holder sends each claim at most once. Then
//
//  1. an ordinal claimed by one token only has at most one child, ever;
//  2. an ordinal claimed by several tokens has one winner, written down by the
//     holder that learned it; a child of that ordinal with another token is
//     surplus ([Ledger.Surplus]), however late its creation arrives, and must be
//     removed without being counted;
//  3. no token claims an ordinal at or above the mark of the last saved ledger
//     before it has saved a ledger with a higher mark.
//
// A ledger is bounded: it keeps the winners of at most [MaxContests] runs of
// ordinals and drops the oldest beyond that, so 2 holds for the last
// MaxContests interrupted holders of an owner.
package replica
