package delta

import "strconv"

// nextForm, set by the linker, makes a build write what a later one may write, so that tests can
// run it next to a build as it is: "additions" for what older builds pass over (a header, the kind
// "advance" for progress records, the reason "seen" for observed deletions), "version" for records
// that need version 2. It is empty in every build that is not made by such a test.
var nextForm string

const (
	nextAdditions = "additions"
	nextVersion   = "version"
	nextHeader    = "Dp-Next"
	nextProgress  = "advance"
	nextObserved  = "seen"
)

// Reads is the highest version of records that this build reads.
func Reads() uint64 {
	if nextForm != "" {
		return SchemaVersion + 1
	}
	return SchemaVersion
}

// Announced is what a leader's term records say about the records to come: the highest version
// that one of them may need; 0 where that is version 1.
func Announced() uint64 {
	if nextForm == nextVersion {
		return SchemaVersion + 1
	}
	return 0
}

// written is the version of a record of kind k. Who leads, and where a history begins, is readable
// by every build.
func written(k Kind) string {
	if nextForm == nextVersion && !k.BeginsTerm() {
		return strconv.Itoa(SchemaVersion + 1)
	}
	return strconv.Itoa(SchemaVersion)
}

// add writes what only a build of the next form does.
func (f *fields) add(r *Record) {
	if nextForm == "" {
		return
	}
	f.set(nextHeader, "1")
	if nextForm == nextAdditions && r.DeleteReason == Observed {
		f.set(HeaderReason, nextObserved)
	}
}

func nameKinds() []string {
	names := []string{
		KindDelta: "delta", KindProgress: "progress", KindSynced: "synced", KindTerm: "term", KindLiveness: "live", KindFence: "fence",
		KindOrigin: "origin",
	}
	if nextForm == nextAdditions {
		names[KindProgress] = nextProgress
	}
	return names
}
