package main

import (
	"context"
	"errors"
	"slices"
	"time"
)

// logFamily holds the figures of the reflector and its log: what it takes to
// bring many pods from an API server into the log, what the API server is asked
// for, how soon a change is there, and what becomes of the log when its writer
// is killed or stopped, or when it is slow.
func logFamily() family {
	return family{
		name:  "log",
		about: "reflector and delta log: sync and latency beside a client-go informer, requests, failover, a slow log",
		parts: []part{
			{"sync", logSync},
			{"requests", logRequests},
			{"latency", logLatency},
			{"failover", logFailover},
			{"slow", logSlow},
		},
	}
}

// mirror is a scripted API server, a log and a reader of it, each a process.
// Reflectors come as they are needed.
type mirror struct {
	b      *bench
	log    *child
	nats   string
	script *scripted
	reader *consumers
}

func startMirror(ctx context.Context, b *bench, name string, cfg scriptConfig) (m *mirror, err error) {
	m = &mirror{b: b}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if m.script, err = startScript(ctx, b, name, cfg); err != nil {
		return m, err
	}
	if m.log, m.nats, err = startLog(ctx, b, name); err != nil {
		return m, err
	}
	m.reader, err = startReaders(ctx, b, m.nats, 1, m.script)
	return m, err
}

// reflector starts a reflector that writes to the log at a URL.
func (m *mirror) reflector(ctx context.Context, holder, nats string) (*reflecting, error) {
	return spawnReflector(ctx, m.b, reflectorConfig{NATS: nats, URL: m.script.URL, Holder: holder})
}

// settle waits until everything that happened is in the log and compares what the
// readers made of it with the source.
func (m *mirror) settle() error { return m.reader.verify(m.script) }

func (m *mirror) close() error {
	var errs []error
	if m.reader != nil && m.reader.child != nil {
		errs = append(errs, m.reader.stop())
	}
	if m.log != nil {
		errs = append(errs, m.log.stop())
	}
	if m.script != nil && m.script.child != nil {
		errs = append(errs, m.script.stop())
	}
	return errors.Join(errs...)
}

// latencies tells how long after a each b was, in milliseconds: p50 and p99.
func latencies(a, b []int64) (p50, p99 float64) {
	var all []time.Duration
	for i := range min(len(a), len(b)) {
		if a[i] != 0 && b[i] != 0 {
			all = append(all, time.Duration(b[i]-a[i]))
		}
	}
	slices.Sort(all)
	return quantileOf(all, .5).Seconds() * 1e3, quantileOf(all, .99).Seconds() * 1e3
}

// quantileOf is the duration that the share q of sorted ones does not exceed; 0 of none.
func quantileOf(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	at := int(q*float64(len(sorted)) + .999999)
	return sorted[min(max(at, 1), len(sorted))-1]
}
