package harness

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ChildCommand is the hidden command by which the bench runs a part of itself
// in a process of its own:
//
//	bench @child KIND
//
// Parent and child exchange lines of JSON. The first is the configuration,
// answered by what the child has to tell about itself once it is up; each
// further one is a call. A child ends when its standard input does.
const ChildCommand = "@child"

// Servant is what runs in a child.
type Servant struct {
	Info any
	Ops  map[string]Op
	Stop func() error
}

// Op is what a servant does when its parent calls it by name.
type Op func(ctx context.Context, args json.RawMessage) (any, error)

// MakeServant starts a servant with its parent's configuration. dir is the parent's scratch.
type MakeServant func(ctx context.Context, config json.RawMessage) (*Servant, error)

type request struct {
	Op   string          `json:"op"`
	Args json.RawMessage `json:"args,omitempty"`
}

// Reply is what a child answers to a call.
type Reply struct {
	Error string          `json:"error,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Usage is what a process has used so far.
type Usage struct {
	CPU     time.Duration `json:"cpu"`      // user and system
	Mallocs uint64        `json:"mallocs"`  // heap allocations
	PeakRSS int64         `json:"peak_rss"` // bytes; 0 where /proc does not say
}

// ServeChild runs a servant of one of the kinds until in ends.
func ServeChild(ctx context.Context, kinds map[string]MakeServant, kind string, in io.Reader, out io.Writer) error {
	start, ok := kinds[kind]
	if !ok {
		return fmt.Errorf("unknown child %q, want one of %s", kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := json.NewEncoder(out)
	lines := json.NewDecoder(bufio.NewReader(in))
	var config json.RawMessage
	if err := lines.Decode(&config); err != nil {
		return err
	}
	s, err := start(ctx, config)
	if err != nil {
		return answers.Encode(Reply{Error: err.Error()})
	}
	err = answers.Encode(answer(s.Info, nil))
	for err == nil {
		var r request
		if err = lines.Decode(&r); err == nil {
			err = answers.Encode(answer(s.do(ctx, r)))
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if s.Stop != nil {
		err = errors.Join(err, s.Stop())
	}
	return err
}

func answer(value any, err error) Reply {
	if err != nil {
		return Reply{Error: err.Error()}
	}
	text, err := json.Marshal(value)
	if err != nil {
		return Reply{Error: err.Error()}
	}
	return Reply{Value: text}
}

func (s *Servant) do(ctx context.Context, r request) (any, error) {
	switch r.Op {
	case "usage":
		return OwnUsage()
	case "heap":
		return heapNow(), nil
	case "collect":
		return collectOnce()
	case "heap profile":
		var path string
		if err := json.Unmarshal(r.Args, &path); err != nil {
			return nil, err
		}
		return nil, writeHeapProfile(path)
	case "profile":
		var path string
		if err := json.Unmarshal(r.Args, &path); err != nil {
			return nil, err
		}
		return nil, toggleProfile(path)
	}
	if s.Ops[r.Op] == nil {
		return nil, fmt.Errorf("unknown operation %q", r.Op)
	}
	return s.Ops[r.Op](ctx, r.Args)
}

// OwnUsage is what this process has used so far.
func OwnUsage() (Usage, error) {
	cpu, err := cpuTime()
	if err != nil {
		return Usage{}, err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Usage{CPU: cpu, Mallocs: m.Mallocs, PeakRSS: peakRSS()}, nil
}

// cpuTime is what this process has used, user and system.
func cpuTime() (time.Duration, error) {
	var r syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), err
}

func writeHeapProfile(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(pprof.WriteHeapProfile(file), file.Close())
}

// toggleProfile begins a CPU profile, or ends it when path is empty.
func toggleProfile(path string) error {
	if path == "" {
		pprof.StopCPUProfile()
		return nil
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return pprof.StartCPUProfile(file) // the file is closed with the process
}

// Child is the parent's side of a servant.
type Child struct {
	kind  string
	Cmd   *exec.Cmd
	in    io.WriteCloser
	send  *json.Encoder
	reply *json.Decoder
}

// Place says where a child runs.
type Place struct {
	// Pinned keeps it on the first core, with GOMAXPROCS=1, where taskset exists.
	Pinned bool
}

// Spawn starts a child and decodes what it tells about itself into info.
func (b *Bench) Spawn(ctx context.Context, kind string, at Place, config, info any) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{self, ChildCommand, kind}
	env := os.Environ()
	if at.Pinned && runtime.NumCPU() > 1 {
		if taskset, err := exec.LookPath("taskset"); err == nil {
			args = append([]string{taskset, "-c", "0"}, args...)
		}
		env = append(env, "GOMAXPROCS=1")
	}
	c := &Child{kind: kind, Cmd: exec.CommandContext(ctx, args[0], args[1:]...)} //nolint:gosec // it is ourselves
	c.Cmd.Env, c.Cmd.Stderr = env, b.stderr
	c.Cmd.Cancel = func() error { return c.Cmd.Process.Signal(syscall.SIGTERM) }
	c.Cmd.WaitDelay = 10 * time.Second
	if c.in, err = c.Cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.Cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", kind, err)
	}
	c.send, c.reply = json.NewEncoder(c.in), json.NewDecoder(bufio.NewReader(out))
	if err := c.send.Encode(config); err != nil {
		return nil, errors.Join(fmt.Errorf("child %s: %w", kind, err), c.Stop())
	}
	if err := c.receive(info); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Child) receive(value any) error {
	var r Reply
	if err := c.reply.Decode(&r); err != nil {
		return fmt.Errorf("child %s ended: %w", c.kind, err)
	}
	if r.Error != "" {
		return fmt.Errorf("child %s: %s", c.kind, r.Error)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(r.Value, value)
}

// Call asks the child to do something; args and value may be nil.
func (c *Child) Call(name string, args, value any) error {
	text, err := json.Marshal(args)
	if err != nil {
		return err
	}
	if err := c.send.Encode(request{Op: name, Args: text}); err != nil {
		return fmt.Errorf("child %s: %w", c.kind, err)
	}
	return c.receive(value)
}

// Usage is what the child has used so far.
func (c *Child) Usage() (u Usage, err error) {
	err = c.Call("usage", nil, &u)
	return u, err
}

// Stop ends the child and waits for it.
func (c *Child) Stop() error {
	err := c.in.Close()
	if waited := c.Cmd.Wait(); waited != nil {
		err = cmp.Or(waited, err)
	}
	if err != nil {
		return fmt.Errorf("child %s: %w", c.kind, err)
	}
	return nil
}

// Kill ends the child as if its machine had gone, and collects it.
func (c *Child) Kill() error {
	err := c.Cmd.Process.Kill()
	_ = c.Cmd.Wait() // it was killed, which is what Wait reports
	_ = c.in.Close()
	return err
}

// Profiled runs work with a CPU profile of the child when --profiles asks for it,
// a file for each turn: go tool pprof adds them up.
func (b *Bench) Profiled(c *Child, name string, work func() error) error {
	if b.profiles == "" {
		return work()
	}
	if err := os.MkdirAll(b.profiles, 0o750); err != nil {
		return err
	}
	b.turns++
	path, err := filepath.Abs(filepath.Join(b.profiles, fmt.Sprintf("%s-%d.pprof", name, b.turns)))
	if err != nil {
		return err
	}
	if err := c.Call("profile", path, nil); err != nil {
		return err
	}
	return errors.Join(work(), c.Call("profile", "", nil))
}

// HeapProfiled writes a heap profile of the child when --profiles asks for it.
func (b *Bench) HeapProfiled(c *Child, name string) error {
	if b.profiles == "" {
		return nil
	}
	path, err := filepath.Abs(filepath.Join(b.profiles, name+".heap.pprof"))
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(b.profiles, 0o750), c.Call("heap profile", path, nil))
}
