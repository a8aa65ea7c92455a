package main

import (
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
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
		return pods == cli.ExitOK && jobs == cli.ExitOK
	})
	for _, x := range []struct {
		stdin, line string
		code        int
		says        string
	}{
		{"", "queue describe dev/job default/nobody", cli.ExitNotFound, `"default/nobody"`},
		{"", "queue retry dev/job default/nobody other/nobody", cli.ExitNotFound, `"default/nobody", "other/nobody"`},
		{"", "queue release dev/job default/nobody", cli.ExitNotFound, `"default/nobody"`},
		{"", "queue delete dev/job default/nobody", cli.ExitNotFound, `"default/nobody"`},
		{"", "queue forget dev/job default/nobody", cli.ExitNotFound, `"default/nobody"`},
		{"", "queue retry dev/job --state dead", cli.ExitOK, ""},
		{"", "reflection add nonsense", cli.ExitNotFound, "dev/nonsense (RESOURCE_NOT_SERVED)\nnothing was added"},
		{"", "reflection ls nonsense", cli.ExitNotFound, "there are:"},
		{"", "reflection remove nonsense", cli.ExitNotFound, "there are: dev/"},
		{"", "index values pods nonsense", cli.ExitNotFound, "there are: label, namespace"},
		{"", "index ls nonsense", cli.ExitNotFound, "there are:"},
		{"", "index remove pods nonsense", cli.ExitNotFound, "there are: none yet"},
		{"", "get pods --index nonsense=1", cli.ExitNotFound, "there are: label, namespace"},
		{"", "watch nonsense", cli.ExitNotFound, "there are:"},
		{"", "get nonsense", cli.ExitNotFound, "there are: dev/"},
		{"", "describe node n1 --cluster nonsense", cli.ExitNotFound, "there are: dev/"},
		{"", "describe pod p1 --cluster nonsense", cli.ExitNotFound, "there are: dev/"},
		{"", "logs p1 --cluster nonsense", cli.ExitNotFound, "there are: dev/"},
		{"", "logs nobody", cli.ExitNotFound, "default/nobody"},
		{"", "queue describe nonsense x", cli.ExitNotFound, "there are: "},
		{"", "queue backoff get nonsense x", cli.ExitNotFound, "there are: "},
		{"", "queue backoff get dev/job nobody", cli.ExitNotFound, `"nobody"`},
		{"", "queue configure dev/job --rate-limiter nonsense", cli.ExitUsage, "nonsense"},
		{"", "node stop nobody", cli.ExitNotFound, "nobody"},
		{"", "reflection add nonsense --unserved", cli.ExitOK, ""},
		{"", "reflection remove nonsense", cli.ExitOK, ""},
		{misspelt, "apply -f -", cli.ExitFailure, `unknown field "spec.paralelism"`},
		{"", "get jobs misspelt", cli.ExitNotFound, "default/misspelt"},
		{misspelt, "apply -f - --validate ignore", cli.ExitOK, ""},
		{strings.Replace(misspelt, "suspend", "suspended", 1), "apply -f -", cli.ExitFailure, `unknown field "spec.suspended"`}, // it exists now
		{misspelt, "apply -f - --validate maybe", cli.ExitUsage, "--validate"},
	} {
		out, errs, code := do(x.stdin, x.line)
		if code != x.code || !strings.Contains(errs, x.says) || strings.Count(errs, "there are: ") > 1 || x.code == cli.ExitOK && errs != "" {
			t.Errorf("%s: exit %d, want %d; printed %q and said %q, want %q", x.line, code, x.code, out, errs, x.says)
		}
	}
	if out, errs, code := do("", "queue ls nonsense"); code != cli.ExitOK || out != "" || !strings.Contains(errs, `begins with "nonsense"`) {
		t.Errorf("queue ls of a prefix that no queue has: exit %d, printed %q and said %q", code, out, errs)
	}
}
