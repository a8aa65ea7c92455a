package main

import (
	"strings"
	"testing"
)

const misspelt = `apiVersion: batch/v1
kind: Job
metadata: {name: misspelt, namespace: default}
spec: {paralelism: 2, suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: a, image: b}]}}}
`

func TestCommandsThatDidNotDoWhatTheyWereAskedSayWhatAndFail(t *testing.T) {
	t.Parallel()
	up := startUp(t, "--controllers", "job")
	do := func(stdin, line string) (string, string, int) {
		t.Helper()
		words := strings.Fields(line)
		flags := up.ask
		switch words[0] {
		case "apply", "node":
			flags = up.api
		case "queue":
			flags = up.queue
		}
		return command(t.Context(), stdin, append(words, flags...)...)
	}
	until(t, func() bool {
		_, _, pods := do("", "get pods")
		_, _, jobs := do("", "get jobs")
		return pods == exitOK && jobs == exitOK
	})
	for _, x := range []struct {
		stdin, line string
		code        int
		says        string
	}{
		{"", "queue describe dev/job default/nobody", exitNotFound, `"default/nobody"`},
		{"", "queue retry dev/job default/nobody other/nobody", exitNotFound, `"default/nobody", "other/nobody"`},
		{"", "queue release dev/job default/nobody", exitNotFound, `"default/nobody"`},
		{"", "queue delete dev/job default/nobody", exitNotFound, `"default/nobody"`},
		{"", "queue forget dev/job default/nobody", exitNotFound, `"default/nobody"`},
		{"", "queue retry dev/job --state dead", exitOK, ""},
		{"", "reflection add nonsense", exitNotFound, "dev/nonsense (RESOURCE_NOT_SERVED)\nnothing was added"},
		{"", "reflection ls nonsense", exitNotFound, "there are:"},
		{"", "reflection remove nonsense", exitNotFound, "there are: dev/"},
		{"", "index values pods nonsense", exitNotFound, "there are: label, namespace"},
		{"", "index ls nonsense", exitNotFound, "there are:"},
		{"", "index remove pods nonsense", exitNotFound, "there are: none yet"},
		{"", "get pods --index nonsense=1", exitNotFound, "there are: label, namespace"},
		{"", "watch nonsense", exitNotFound, "there are:"},
		{"", "get nonsense", exitNotFound, "there are: dev/"},
		{"", "describe node n1 --cluster nonsense", exitNotFound, "there are: dev/"},
		{"", "describe pod p1 --cluster nonsense", exitNotFound, "there are: dev/"},
		{"", "logs p1 --cluster nonsense", exitNotFound, "there are: dev/"},
		{"", "logs nobody", exitNotFound, "default/nobody"},
		{"", "queue describe nonsense x", exitNotFound, "there are: "},
		{"", "queue backoff get nonsense x", exitNotFound, "there are: "},
		{"", "queue backoff get dev/job nobody", exitNotFound, `"nobody"`},
		{"", "queue configure dev/job --rate-limiter nonsense", exitUsage, "nonsense"},
		{"", "node stop nobody", exitNotFound, "nobody"},
		{"", "reflection add nonsense --unserved", exitOK, ""},
		{"", "reflection remove nonsense", exitOK, ""},
		{misspelt, "apply -f -", exitFailure, `unknown field "spec.paralelism"`},
		{"", "get jobs misspelt", exitNotFound, "default/misspelt"},
		{misspelt, "apply -f - --validate ignore", exitOK, ""},
		{strings.Replace(misspelt, "suspend", "suspended", 1), "apply -f -", exitFailure, `unknown field "spec.suspended"`}, // it exists now
		{misspelt, "apply -f - --validate maybe", exitUsage, "--validate"},
	} {
		out, errs, code := do(x.stdin, x.line)
		if code != x.code || !strings.Contains(errs, x.says) || strings.Count(errs, "there are: ") > 1 || x.code == exitOK && errs != "" {
			t.Errorf("%s: exit %d, want %d; printed %q and said %q, want %q", x.line, code, x.code, out, errs, x.says)
		}
	}
	if out, errs, code := do("", "queue ls nonsense"); code != exitOK || out != "" || !strings.Contains(errs, `begins with "nonsense"`) {
		t.Errorf("queue ls of a prefix that no queue has: exit %d, printed %q and said %q", code, out, errs)
	}
}
