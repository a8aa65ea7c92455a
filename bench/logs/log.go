package logs

import (
	"context"
	"errors"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
)

// Family holds the figures of the reflector and its log: what it takes to
// bring many pods from an API server into the log, what the API server is asked
// for, how soon a change is there, and what becomes of the log when its writer
// is killed or stopped, or when it is slow.
func Family() harness.Family {
	return harness.Family{
		Name:  "log",
		About: "reflector and delta log: sync and latency beside a client-go informer, requests, failover, a slow log",
		Parts: []harness.Part{
			{Name: "sync", Run: logSync},
			{Name: "requests", Run: logRequests},
			{Name: "latency", Run: logLatency},
			{Name: "failover", Run: logFailover},
			{Name: "slow", Run: logSlow},
		},
	}
}

// mirror is a scripted API server, a log and a reader of it, each a process.
// Reflectors come as they are needed.
type mirror struct {
	b      *harness.Bench
	log    *harness.Child
	nats   string
	script *scripted
	reader *consumers
}

func startMirror(ctx context.Context, b *harness.Bench, name string, cfg scriptConfig) (m *mirror, err error) {
	m = &mirror{b: b}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if m.script, err = startScript(ctx, b, name, cfg); err != nil {
		return m, err
	}
	if m.log, m.nats, err = system.StartLog(ctx, b, name); err != nil {
		return m, err
	}
	m.reader, err = startReaders(ctx, b, m.nats, 1, m.script)
	return m, err
}

// reflector starts a reflector that writes to the log at a URL.
func (m *mirror) reflector(ctx context.Context, holder, nats string) (*system.Reflecting, error) {
	return system.SpawnReflector(ctx, m.b, system.ReflectorConfig{NATS: nats, URL: m.script.URL, Holder: holder})
}

// settle waits until everything that happened is in the log and compares what the
// readers made of it with the source.
func (m *mirror) settle() error { return m.reader.verify(m.script) }

func (m *mirror) close() error {
	var errs []error
	if m.reader != nil && m.reader.Child != nil {
		errs = append(errs, m.reader.Stop())
	}
	if m.log != nil {
		errs = append(errs, m.log.Stop())
	}
	if m.script != nil && m.script.Child != nil {
		errs = append(errs, m.script.Stop())
	}
	return errors.Join(errs...)
}
