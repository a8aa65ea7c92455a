package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/upstream"
)

// suite is some test files of client-go and how they come to run here.
type suite struct {
	// folder is that of the bridge, which gets the files, and from their folder in client-go.
	folder, from string
	files        map[string][]upstream.Patch
	// without are functions of the files that are not compiled.
	without []string
	// list is the file that says what comes of each function.
	list string
}

// build compiles a suite. It returns the program, and the functions that the files have.
func (s suite) build(t *testing.T, want expectations) (program string, functions []string) {
	t.Helper()
	program = upstream.Compile(t, upstream.Source{
		Module: "k8s.io/client-go", From: s.from, Files: s.files, Mod: os.Getenv("DELTAPLANE_MODFILE_DIR"),
		Edit: func(name string, text []byte) ([]byte, error) {
			text, found, err := trim(name, text, func(function string) bool { return want[function].cut || slices.Contains(s.without, function) })
			functions = append(functions, found...)
			return text, err
		},
	}, s.folder)
	slices.Sort(functions)
	return program, functions
}

// expectation is what comes of a function.
type expectation struct {
	since  string // the version of client-go that has it first; empty for all
	passes bool
	cut    bool // it is not compiled
}

type expectations map[string]expectation

var line = regexp.MustCompile(`^(Test\w+) +(?:(\d+\.\d+)\+ +)?(?:(pass)|(fails|cut): \S.*)$`)

// expected reads a list.
func (s suite) expected(t *testing.T) expectations {
	t.Helper()
	file, err := os.Open(s.list)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all := expectations{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if text := lines.Text(); text != "" && !strings.HasPrefix(text, "#") {
			f := line.FindStringSubmatch(text)
			if f == nil {
				t.Fatalf("%s: %q is no line of it", s.list, text)
			}
			all[f[1]] = expectation{since: f[2], passes: f[3] != "", cut: f[4] == "cut"}
		}
	}
	return all
}

// run builds a suite and runs it, with each of some variables if there are any. What comes of the
// functions must be what the list says.
func (s suite) run(t *testing.T, variables ...string) {
	if testing.Short() {
		t.Skip("builds client-go's tests")
	}
	want := s.expected(t)
	program, functions := s.build(t, want)
	for _, name := range functions {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is new in client-go: say in %s what comes of it", name, s.list)
		}
	}
	for name, e := range want {
		if e.since == "" && !slices.Contains(functions, name) {
			t.Errorf("client-go has no %s any more: remove it from %s", name, s.list)
		}
	}
	functions = slices.DeleteFunc(functions, func(name string) bool { return want[name].cut })
	if len(variables) == 0 {
		s.all(t, program, functions, want)
	}
	for _, variable := range variables {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()
			s.all(t, program, functions, want, variable)
		})
	}
}

// all runs each function in a process of its own, some at a time.
func (s suite) all(t *testing.T, program string, functions []string, want expectations, env ...string) {
	var running sync.WaitGroup
	var passed atomic.Int64
	slots := make(chan struct{}, 12) // most of them wait for delays
	for _, name := range functions {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			passes := want[name].passes
			out, err := s.one(t, program, name, env)
			switch {
			case err != nil && passes:
				t.Errorf("%s fails: %v\n%s", name, err, out)
			case err == nil && !passes:
				t.Errorf("%s passes: say so in %s", name, s.list)
			case err == nil:
				passed.Add(1)
			}
		})
	}
	running.Wait()
	t.Logf("%d of %d functions that are compiled pass", passed.Load(), len(functions))
}

// one runs a function.
func (s suite) one(t *testing.T, program, name string, env []string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run", "^"+name+"$", "-test.timeout", "4m", "-test.v")
	cmd.Dir = s.folder
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err == nil && !bytes.Contains(out, []byte("--- PASS: "+name)) {
		err = errors.New("it did not run")
	}
	if text := string(out); len(text) > 8000 {
		return fmt.Sprintf("%s\n... %d bytes ...\n%s", text[:4000], len(text)-8000, text[len(text)-4000:]), err
	}
	return string(out), err
}
