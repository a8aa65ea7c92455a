package rpc_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

func TestOfVeryManyNamesThoseMostLikeTheOneMeantAreListed(t *testing.T) {
	t.Parallel()
	var names, long []string
	for i := range 500 {
		names = append(names, fmt.Sprintf("dev/other-%d", i))
		long = append(long, fmt.Sprintf("dev/%0250d", i))
	}
	names = append(names, "dev/deployments.v1.apps")
	got := rpc.ThereAre(names, "deploymnets")
	if !strings.HasPrefix(got, "there are: dev/deployments.v1.apps, ") || !strings.HasSuffix(got, " and 481 more") || strings.Count(got, ", ") != 19 {
		t.Errorf("of 501: %q", got)
	}
	if got := rpc.ThereAre(long, strings.Repeat("x", 1<<20)); len(got) > 1<<10 || !strings.HasSuffix(got, " and 498 more") {
		t.Errorf("of long ones: %q", got)
	}
	for want, names := range map[string][]string{
		"there are: none yet":          nil,
		"there are: a, b":              {"b", "a"},
		"there are: 1 with long names": {strings.Repeat("x", 800)},
	} {
		if got := rpc.ThereAre(names, ""); got != want {
			t.Errorf("of %.20q: %q", names, got)
		}
	}
}
