//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// result is how a spec ended.
type result struct {
	Name    string
	Passed  bool
	Seconds float64
	// Why is what the suite says of a spec that did not pass, on one line.
	Why string `json:",omitempty"`
}

// again says which specs that have a result are run.
type again string

const (
	againNone   again = "none"
	againFailed again = "failed"
	againAll    again = "all"
)

func (a *again) String() string { return string(*a) }

// Set takes the value of the flag.
func (a *again) Set(text string) error {
	switch chosen := again(text); chosen {
	case againNone, againFailed, againAll:
		*a = chosen
		return nil
	}
	return errors.New("want none, failed or all")
}

func (a *again) asks(last result) bool {
	return *a == againAll || *a == againFailed && !last.Passed
}

// results are kept in a file, a line for each, so that a run that was ended goes on where it was.
type results struct {
	mu   sync.Mutex
	file *os.File
	last map[string]result
}

// openResults reads what earlier runs found. Of several results of a spec the last one counts.
func openResults(path string) (*results, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	r := &results{last: map[string]result{}}
	whole := 0
	for line := range bytes.Lines(text) {
		var one result
		if err := json.Unmarshal(line, &one); err != nil || !bytes.HasSuffix(line, []byte("\n")) {
			break // the process was killed while it wrote it
		}
		whole += len(line)
		r.last[one.Name] = one
	}
	if r.file, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		return nil, err
	}
	if err := r.file.Truncate(int64(whole)); err != nil {
		return nil, errors.Join(err, r.file.Close())
	}
	return r, nil
}

func (r *results) close() error { return r.file.Close() }

func (r *results) of(name string) (result, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one, has := r.last[name]
	return one, has
}

func (r *results) add(one result) error {
	line, err := json.Marshal(one)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("keep the result of %s: %w", one.Name, err)
	}
	r.last[one.Name] = one
	return nil
}
