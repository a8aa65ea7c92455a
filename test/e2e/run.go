//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// cleanup is how long a spec that has failed may take to remove what it made.
const cleanup = 30 * time.Second

// runSpecs runs specs, at first those that permit others beside them, and keeps and prints each
// result as it comes. It returns how many failed. A spec that is interrupted by the end of ctx has
// no result.
func runSpecs(ctx context.Context, names []string, kept *results, parallel int, out io.Writer, run func(context.Context, string) result) (failed int, err error) {
	var beside, after []string
	for _, name := range names {
		if alone(name) {
			after = append(after, name)
		} else {
			beside = append(beside, name)
		}
	}
	var mu sync.Mutex
	var faults []error
	done, passed := 0, 0
	one := func(name string) {
		got := run(ctx, name)
		if ctx.Err() != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		faults = append(faults, kept.add(got))
		done++
		word := "passed"
		if got.Passed {
			passed++
		} else {
			word = "FAILED"
		}
		fmt.Fprintf(out, "[%2d/%d] %s %4.0fs  %s\n", done, len(names), word, got.Seconds, name)
		if !got.Passed {
			fmt.Fprintf(out, "               %s\n", got.Why)
		}
	}
	waiting := make(chan string)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for name := range waiting {
				one(name)
			}
		})
	}
	for _, name := range beside {
		waiting <- name
	}
	close(waiting)
	workers.Wait()
	for _, name := range after {
		if ctx.Err() == nil {
			one(name)
		}
	}
	fmt.Fprintf(out, "%d of %d specs passed\n", passed, done)
	return done - passed, errors.Join(append(faults, context.Cause(ctx))...)
}

// runSpec runs a spec in a process of its own, since the suite can bound the time of all its specs
// only. Its output goes to files that begin with files.
func runSpec(ctx context.Context, suite, kubeconfig, files, name string, limit time.Duration) result {
	began := time.Now()
	report := files + ".json"
	failed := func(err error) result {
		return result{Name: name, Seconds: time.Since(began).Seconds(), Why: err.Error()}
	}
	if err := os.RemoveAll(report); err != nil {
		return failed(err)
	}
	log, err := os.Create(files + ".log")
	if err != nil {
		return failed(err)
	}
	defer log.Close()
	// The suite ends by itself at its limit; one that does not is killed.
	bounded, cancel := context.WithTimeout(ctx, limit+2*cleanup)
	defer cancel()
	cmd := exec.CommandContext(bounded, suite,
		"--kubeconfig="+kubeconfig, "--provider=skeleton", "--num-nodes=1", "--minStartupPods=0", "--allowed-not-ready-nodes=-1", "--disable-log-dump",
		"--ginkgo.focus="+regexp.QuoteMeta(name)+"$", "--ginkgo.timeout="+limit.String(), "--ginkgo.grace-period="+cleanup.String(),
		"--ginkgo.v", "--ginkgo.no-color", "--ginkgo.json-report="+report)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = cleanup
	ended := cmd.Run()
	text, err := os.ReadFile(report)
	if err != nil {
		return failed(fmt.Errorf("the suite wrote no report: %w", errors.Join(ended, err)))
	}
	got, err := read(text, name)
	if err != nil {
		return failed(errors.Join(err, ended))
	}
	got.Seconds = time.Since(began).Seconds()
	return got
}

// report is what is read of a report of Ginkgo.
type report struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeText            string
		State                   string
		Failure                 failure
		// AdditionalFailures of a spec that ran out of time say for what it waited.
		AdditionalFailures []struct{ Failure failure }
	}
}

type failure struct {
	Message  string
	Location struct {
		FileName   string
		LineNumber int
	}
}

// read finds a spec in a report of Ginkgo. A spec that skipped itself has not passed.
func read(text []byte, name string) (result, error) {
	var suites []report
	if err := json.Unmarshal(text, &suites); err != nil {
		return result{}, fmt.Errorf("the suite's report: %w", err)
	}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			if strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ") != name {
				continue
			}
			got := result{Name: name, Passed: spec.State == "passed"}
			if !got.Passed {
				last := spec.Failure
				for _, more := range spec.AdditionalFailures {
					last = more.Failure
				}
				file := last.Location.FileName[strings.LastIndex(last.Location.FileName, "/")+1:]
				got.Why = fmt.Sprintf("%s at %s:%d: %s", spec.State, file, last.Location.LineNumber, oneLine(last.Message))
			}
			return got, nil
		}
	}
	return result{}, errors.New("the suite's report has not this spec")
}

// oneLine is the beginning of a text, without line breaks.
func oneLine(text string) string {
	const most = 200
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return text
}
