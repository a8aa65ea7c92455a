package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const talking = `apiVersion: v1
kind: Pod
metadata: {name: talk, namespace: default, annotations: {deltaplane.io/run-seconds: "0", deltaplane.io/log: "hello there", deltaplane.io/run-seconds.side: forever, deltaplane.io/log.side: "and hello"}}
spec: {containers: [{name: main, image: none}, {name: side, image: none}]}
`

func TestLogsPrintsWhatContainersOfThisMachineWrote(t *testing.T) {
	t.Parallel()
	r := startUp(t, "--crash-loop-initial", "2m", "--crash-loop-max", "2m")
	if _, errs, code := command(t.Context(), talking, append([]string{"apply", "-f", "-"}, r.api...)...); code != exitOK {
		t.Fatal(errs)
	}
	logs := func(args ...string) (string, string, int) {
		return command(t.Context(), "", slices.Concat([]string{"logs", "talk", "--log-dir", filepath.Join(r.dir, "nodes", "logs")}, args, r.ask[:2])...)
	}
	until(t, func() bool { // it has run twice
		out, _, code := logs("--previous")
		return code == exitOK && strings.Contains(out, "hello there\n")
	})
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitOK, "hello there\n"},
		{[]string{"-c", "side"}, exitOK, "and hello\n"},
		{[]string{"--timestamps"}, exitOK, "T"},
		{[]string{"-c", "none"}, exitUsage, "there are main, side"},
		{[]string{"-c", "side", "--previous"}, exitNotFound, "no log of that instance"},
		{[]string{"-n", "other"}, exitNotFound, "other/talk"},
		{[]string{"--log-dir", t.TempDir()}, exitNotFound, "--log-dir"},
	} {
		out, errs, code := logs(c.args...)
		if code != c.code || !strings.Contains(out+errs, c.says) || c.code == exitOK && strings.Contains(out, "stdout F") {
			t.Errorf("logs %v exited with %d, want %d: %s%s, want %q in it", c.args, code, c.code, out, errs, c.says)
		}
	}
}

func FuzzCopyLogKeepsEveryText(f *testing.F) {
	f.Add("2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stdout P two \n2026-01-01T00:00:00Z stderr F three\nodd\n\n")
	f.Fuzz(func(t *testing.T, in string) {
		var out strings.Builder
		if err := copyLog(&out, strings.NewReader(in), false); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "\n"); n > strings.Count(in, "\n")+1 {
			t.Errorf("%d lines of %q became %d", strings.Count(in, "\n"), in, n)
		}
	})
}

func TestALineInPartsIsOneLine(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	in := "t1 stdout F one\nt2 stdout P two \nt3 stdout F three\nnot of the format\nt4 stderr F  four"
	if err := copyLog(&out, strings.NewReader(in), true); err != nil || out.String() != "t1 one\nt2 two three\nnot of the format\nt4  four\n" {
		t.Errorf("%v: %q", err, out.String())
	}
}
