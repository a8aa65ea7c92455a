package reflector

import (
	"context"
	"errors"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// stageLead is the stage of what ends a term; the others are the source's: resolve, list, watch.
const stageLead = "lead"

// reason is a row of the table from errors to the words of ListReflections.
type reason struct {
	word string
	is   func(error) bool
}

func wraps(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
}

// sourceReasons are why the API server cannot be listed or watched; the first row that fits counts.
var sourceReasons = []reason{
	{"NOT_SERVED", wraps(kube.ErrNotServed)},
	{"SECOND_SCOPE", wraps(errSecondScope)},
	{"NO_NAMESPACES", wraps(errNoNamespaces)},
	{"LOG_UNAVAILABLE", wraps(errStoreAway)},
	{"SHORT_WATCH", wraps(errVeryShort)},
	{"STREAM_UNFINISHED", wraps(errUnfinished)},
	{"UNAUTHORIZED", kube.IsUnauthorized},
	{"FORBIDDEN", kube.IsForbidden},
	{"CERTIFICATE", kube.IsCertificate},
	{"THROTTLED", kube.IsTooManyRequests},
	{"EXPIRED", func(err error) bool { return kube.IsExpired(err) || kube.IsTooLargeRV(err) }},
	{"NOT_SERVED", kube.IsNotFound},
	{"BAD_ANSWER", wraps(kube.ErrBadAnswer, kube.ErrBadEvent)},
	{"REFUSED", func(err error) bool { return kube.IsInvalid(err) || kube.IsBadRequest(err) }},
	{"SOURCE_FAILED", isStatus}, // what the API server says of itself: 500, 503, 504
	{"UNREACHABLE", kube.IsUnreachable},
}

// leadReasons are why a term ended or could not begin. What is not named is a fault of the log: the
// source's faults end no term.
var leadReasons = []reason{
	{"SOURCE_REPLACED", wraps(errReplaced)},
	{"SOURCE_RESTORED", wraps(errNewEpoch)},
	{"DIFFERENT_SPEC", wraps(errDifferentSpec)},
	{"NEWER_LOG", wraps(errNewerLog)},
	{"DEPOSED", wraps(stream.ErrDeposed, errLeaseLost)},
	{"LOG_LOST", wraps(stream.ErrLogLost, stream.ErrBootstrap)},
	{"FOREIGN_LOG", wraps(stream.ErrForeign)},
	{"NO_JETSTREAM", wraps(stream.ErrNoJetStream)},
	{"LOG_FULL", wraps(stream.ErrLogFull)},
	{"LOG_UNAVAILABLE", func(err error) bool { return !errors.Is(err, context.Canceled) }},
}

// reasonOf is the word for an error of a stage; INTERNAL for one that is not foreseen.
func reasonOf(stage string, err error) string {
	table := sourceReasons
	if stage == stageLead {
		table = leadReasons
	}
	for _, row := range table {
		if row.is(err) {
			return row.word
		}
	}
	return "INTERNAL"
}
