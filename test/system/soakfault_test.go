package system

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// soakFault is a kind of fault. What it does is over when do returns.
type soakFault struct {
	kind   string
	weight int // how often it comes, beside the others
	do     func(kind string)
}

func (s *soak) kinds() []soakFault {
	return []soakFault{
		{"kill", 6, func(kind string) { s.killed(kind, s.part()) }},
		{"restart", 3, s.restarted},
		{"stop", 6, func(kind string) { s.stopped(kind, s.part()) }},
		{"cut", 6, s.cut},
		{"kill API server", 1, func(kind string) { s.killed(kind, "api") }},
		{"stop API server", 1, func(kind string) { s.stopped(kind, "api") }},
		{"kill NATS", 1, func(kind string) { s.killed(kind, "nats") }},
		{"stop NATS", 1, func(kind string) { s.stopped(kind, "nats") }},
		{"kill Redis", 1, s.redisKilled},
		{"stop Redis", 1, s.redisStopped},
		{"fill Redis", 1, s.redisFilled},
	}
}

// torment does one fault after the other for a while.
func (s *soak) torment(lasts time.Duration, l *soakLoad) {
	s.t.Helper()
	began := time.Now()
	kinds := s.kinds()
	all := 0
	for _, k := range kinds {
		all += k.weight
	}
	next := began.Add(soakLine)
	for time.Since(began) < lasts && !s.t.Failed() {
		at := s.rng.IntN(all)
		for _, k := range kinds {
			if at -= k.weight; at < 0 {
				k.do(k.kind)
				break
			}
		}
		s.wait(2 * time.Second)
		for name, p := range s.processes {
			select {
			case <-p.done:
				delete(s.processes, name)
				s.judge(name, p)
				s.t.Fatalf("%s has ended by itself: %s\n%s", name, p.cmd.ProcessState, s.tails[name])
			default:
			}
		}
		if time.Now().After(next) {
			next = next.Add(soakLine)
			s.t.Logf("%s: %s; %s", time.Since(began).Round(time.Second), s.sums(), l)
		}
	}
}

const soakLine = 30 * time.Second

// part is one of ours.
func (s *soak) part() string { return soakParts[s.rng.IntN(len(soakParts))] }

// wait waits for some part of a time.
func (s *soak) wait(most time.Duration) {
	select {
	case <-time.After(time.Duration(s.rng.Int64N(int64(most)))):
	case <-s.t.Context().Done():
	}
}

func (s *soak) count(kind, of string) {
	if s.counts[kind] == nil {
		s.counts[kind] = map[string]int{}
	}
	s.counts[kind][of]++
}

func (s *soak) killed(kind, part string) {
	s.count(kind, part)
	s.leave(part, syscall.SIGKILL)
	s.wait(3 * time.Second)
	s.run(part)
}

func (s *soak) restarted(kind string) {
	part := s.part()
	s.count(kind, part)
	// Before it answers it may not heed SIGTERM yet.
	admin := &API{Base: "http://" + s.ports[part+"-admin"], Client: http.DefaultClient}
	eventually(s.t, 2*time.Minute, part+" answers", func(ctx context.Context) error {
		return admin.do(ctx, http.MethodGet, "/healthz", "", nil, nil)
	})
	s.leave(part, syscall.SIGTERM)
	s.run(part)
}

// stopped stops a part, at times for longer than leases last.
func (s *soak) stopped(kind, part string) {
	s.count(kind, part)
	process := s.processes[part].cmd.Process
	_ = process.Signal(syscall.SIGSTOP)
	s.wait(8 * time.Second)
	_ = process.Signal(syscall.SIGCONT)
}

func (s *soak) cut(kind string) {
	link := s.links[s.rng.IntN(len(s.links))]
	s.count(kind, link)
	s.relays[link].Cut(time.Duration(s.rng.Int64N(int64(3 * time.Second))))
}

func (s *soak) redisKilled(kind string) {
	s.count(kind, "redis")
	s.redis.Kill()
	s.wait(3 * time.Second)
	s.redis.Start()
}

func (s *soak) redisStopped(kind string) {
	s.count(kind, "redis")
	s.redis.Pause()
	s.wait(8 * time.Second)
	s.redis.Continue()
}

// redisFilled lets Redis refuse every write that takes memory.
func (s *soak) redisFilled(kind string) {
	s.count(kind, "redis")
	s.redis.Do("CONFIG", "SET", "maxmemory", 1)
	s.wait(5 * time.Second)
	s.redis.Do("CONFIG", "SET", "maxmemory", 0)
}

// sums are the faults so far by kind.
func (s *soak) sums() string {
	var parts []string
	for _, k := range s.kinds() {
		n := 0
		for _, c := range s.counts[k.kind] {
			n += c
		}
		parts = append(parts, fmt.Sprintf("%s %d", k.kind, n))
	}
	return strings.Join(parts, ", ")
}

// summary is the faults by kind and what they fell on.
func (s *soak) summary() string {
	lines := []string{"faults by what they fell on:"}
	for _, k := range s.kinds() {
		var on []string
		for _, of := range slices.Sorted(maps.Keys(s.counts[k.kind])) {
			on = append(on, fmt.Sprintf("%s %d", of, s.counts[k.kind][of]))
		}
		lines = append(lines, fmt.Sprintf("  %s: %s", k.kind, strings.Join(on, ", ")))
	}
	return strings.Join(lines, "\n")
}

// figure is what a process takes.
type figure struct {
	bytes, goroutines int // goroutines are 0 where it does not tell
}

// figures are those of every process that runs, by part.
func (s *soak) figures() map[string]figure {
	s.t.Helper()
	all := map[string]figure{"redis": {bytes: s.redisBytes()}}
	for name, p := range s.processes {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
		if err != nil {
			s.t.Fatal(err)
		}
		pages, err := strconv.Atoi(strings.Fields(string(text))[1])
		if err != nil {
			s.t.Fatal(err)
		}
		f := figure{bytes: pages * os.Getpagesize()}
		if at := s.ports[name+"-admin"]; at != "" && slices.Contains(soakParts, name) {
			eventually(s.t, time.Minute, "metrics of "+name, func(ctx context.Context) error {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/metrics", nil)
				if err != nil {
					return err
				}
				answer, err := http.DefaultClient.Do(request)
				if err != nil {
					return err
				}
				defer answer.Body.Close()
				f.goroutines = int(sumOf(s.t, answer.Body, "go_goroutines"))
				return nil
			})
		}
		all[name] = f
	}
	return all
}

func (s *soak) redisBytes() int {
	s.t.Helper()
	for line := range strings.Lines(fmt.Sprint(s.redis.Do("INFO", "memory"))) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			if n, err := strconv.Atoi(text); err == nil {
				return n
			}
		}
	}
	s.t.Fatal("Redis does not tell its memory")
	return 0
}

// back waits until every process takes about what it took before. Twice as much and some more are
// for what is warm now, and for the log, which keeps deletions for an hour.
func (s *soak) back(before map[string]figure) {
	s.t.Helper()
	var now map[string]figure
	eventually(s.t, 3*time.Minute, "every process takes what it took before", func(context.Context) error {
		now = s.figures()
		for name, f := range now {
			old := before[name]
			if f.goroutines > 2*old.goroutines+50 || f.bytes > 2*old.bytes+64<<20 {
				return fmt.Errorf("%s has %d goroutines and %d MiB, after the warm-up %d and %d",
					name, f.goroutines, f.bytes>>20, old.goroutines, old.bytes>>20)
			}
		}
		return nil
	})
	for _, name := range slices.Sorted(maps.Keys(now)) {
		s.t.Logf("%s: %d MiB, after the warm-up %d; %d goroutines, after the warm-up %d",
			name, now[name].bytes>>20, before[name].bytes>>20, now[name].goroutines, before[name].goroutines)
	}
}
