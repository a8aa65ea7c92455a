package policy_test

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/deltaplane/deltaplane/core/replica"
	"github.com/deltaplane/deltaplane/services/controllers/job/policy"
)

// TestMatchSuccessPolicy rows and a few more; the Job has ten completions.
func TestMatchSuccessPolicy(t *testing.T) {
	t.Parallel()
	type rules = []batchv1.SuccessPolicyRule
	indexes := func(text string) batchv1.SuccessPolicyRule { return batchv1.SuccessPolicyRule{SucceededIndexes: &text} }
	least := func(n int32) batchv1.SuccessPolicyRule { return batchv1.SuccessPolicyRule{SucceededCount: &n} }
	some := func(n int32, text string) batchv1.SuccessPolicyRule {
		return batchv1.SuccessPolicyRule{SucceededIndexes: &text, SucceededCount: &n}
	}
	const first, second = "Matched rules at index 0", "Matched rules at index 1"
	for _, tc := range []struct {
		name  string
		rules rules
		ok    string // the indexes that have succeeded
		want  string
	}{
		{"successPolicy is null", nil, "0", ""},
		{"any rules are nothing", rules{}, "0", ""},
		{"rules.succeededIndexes is invalid format", rules{indexes("invalid-form")}, "0", ""},
		{"indexes, matched", rules{indexes("0-2")}, "0-2,4-7", first},
		{"indexes, not matched", rules{indexes("3")}, "0-2", ""},
		{"count, matched", rules{least(2)}, "0-2", first},
		{"count, exactly", rules{least(3)}, "0-2", first},
		{"count, not matched", rules{least(4)}, "0-2", ""},
		{"multiple rules, one met", rules{indexes("9"), indexes("4,6")}, "0-2,4-7", second},
		{"multiple rules, all met", rules{indexes("0,1"), indexes("5")}, "0-2,4-7", first},
		{"a rule that cannot be read is not met", rules{indexes("x"), least(1)}, "0", second},
		{"indexes and count, met", rules{some(2, "3-6")}, "0-2,4-7", first},
		{"indexes and count, not met", rules{some(2, "3-6")}, "0-2,6,7", ""},
		{"indexes and a count above them", rules{some(9, "0-2")}, "0-2", first},
		{"nothing has succeeded", rules{least(4)}, "", ""},
		{"nothing has succeeded and nothing is asked for", rules{least(0)}, "", ""},
		{"proper subset", rules{indexes("2-4,6-8")}, "1-9", first},
		{"equals", rules{indexes("2-4,6-9")}, "2-4,6-9", first},
		{"subset, below completions", rules{indexes("2-4,8-12")}, "2-5,7-9", first},
		{"rules is an empty set", rules{indexes("")}, "1-3", ""},
		{"succeededIndexes is an empty set", rules{indexes("1")}, "", ""},
		{"both are empty sets", rules{indexes("")}, "", ""},
		{"none of the indexes is below completions", rules{indexes("10-12,14-16")}, "1-3,5-7", ""},
		{"overlaps at first", rules{indexes("1-3,5-7")}, "2-4,6-8", ""},
		{"overlaps at first, with count", rules{some(4, "1-3,5-7")}, "2-4,6-8", first},
		{"overlaps at last", rules{indexes("2-4,6-9")}, "1-3,5-7", ""},
		{"overlaps at last, with count", rules{some(4, "2-4,6-9")}, "1-3,5-7", first},
		{"completely overlaps", rules{indexes("0-4,6-9")}, "1-3,7,8", ""},
		{"completely overlaps, with count", rules{some(5, "0-4,6-9")}, "1-3,7,8", first},
		{"overlaps multiple at last", rules{indexes("0-6,8-9")}, "1-3,5-9", ""},
		{"overlaps multiple at last, with count", rules{some(7, "0-6,8-9")}, "1-3,5-9", first},
		{"overlaps at first, equals at last", rules{indexes("0-5,7-9")}, "1-5,7-9", ""},
		{"overlaps at first, equals at last, with count", rules{some(8, "0-5,7-9")}, "1-5,7-9", first},
		{"the first overlaps at first", rules{indexes("0-3,6-9")}, "1-9", ""},
		{"the first overlaps at first, with count", rules{some(7, "0-3,6-9")}, "1-9", first},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var p *batchv1.SuccessPolicy
			if tc.rules != nil {
				p = &batchv1.SuccessPolicy{Rules: tc.rules}
			}
			message, met := policy.OfSuccess(p, 10, replica.ParseIndexes(tc.ok, 10))
			if message != tc.want || met != (tc.want != "") {
				t.Errorf("%q, met %v; want %q", message, met, tc.want)
			}
		})
	}
}
