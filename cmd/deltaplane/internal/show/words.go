package show

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Few lists names on one line, at most ten of them.
func Few(names []string) string {
	const most = 10
	if more := len(names) - most; more > 0 {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// EnumText is a proto's name for people: ADD_STATUS_MARKED_DIRTY is "marked dirty".
func EnumText(name, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, prefix), "_", " "))
}

// StateName is a state as operators write it.
func StateName(s queuev1.State) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATE_"))
}

// Moment is a time of the day, and how far away it is.
func Moment(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	when := at.AsTime()
	if until := time.Until(when); until > 0 {
		return when.Local().Format(time.TimeOnly) + " (in " + until.Round(time.Millisecond).String() + ")"
	}
	return when.Local().Format(time.TimeOnly) + " (" + time.Since(when).Round(time.Millisecond).String() + " ago)"
}
