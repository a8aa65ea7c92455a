package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// reflectorLease is what reflectors have by default.
const reflectorLease = 3 * time.Second

// reflectorConfig is a reflector of pods, on a log and an API server in other
// processes. Everything else is as by default.
type reflectorConfig struct {
	NATS       string `json:"nats"`
	URL        string `json:"url"` // of the API server; or
	Kubeconfig string `json:"kubeconfig"`
	Holder     string `json:"holder"`
}

// reflectorServer is the servant that is one reflector, from when it is told to start.
func reflectorServer(_ context.Context, raw json.RawMessage) (*servant, error) {
	var cfg reflectorConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	s := &servant{}
	s.ops = map[string]op{"start": func(ctx context.Context, _ json.RawMessage) (addr any, err error) {
		addr, s.stop, err = startReflector(ctx, cfg)
		return addr, err
	}}
	return s, nil
}

func startReflector(ctx context.Context, cfg reflectorConfig) (string, func() error, error) {
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS})
	if err != nil {
		return "", nil, err
	}
	client, err := kube.Load(kube.Config{Kubeconfig: cfg.Kubeconfig, URL: cfg.URL})
	if err != nil {
		return "", nil, err
	}
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: "reflector", LogLevel: "error"})
	if err != nil {
		return "", nil, err
	}
	s, err := reflector.New(reflector.Config{
		Cluster: podsCollection.Cluster, Resources: []reflector.Resource{{Name: "pods.v1"}}, Holder: cfg.Holder,
		LeaseTTL: reflectorLease,
	}, conn, client, tel)
	if err != nil {
		return "", nil, err
	}
	stop := inBackground(ctx, s.Run)
	addr, err := s.Addr(ctx)
	return addr, func() error { defer conn.Close(); return stop() }, err
}

// reflecting is the parent's side of a reflector.
type reflecting struct {
	*child
	holder string
	conns  pool
}

// readyReflector makes the child of a reflector, which is not started yet.
func readyReflector(ctx context.Context, b *bench, cfg reflectorConfig) (*reflecting, error) {
	c, err := b.spawn(ctx, "reflector", place{}, cfg, nil)
	return &reflecting{child: c, holder: cfg.Holder}, err
}

// spawnReflector runs a reflector in a child.
func spawnReflector(ctx context.Context, b *bench, cfg reflectorConfig) (*reflecting, error) {
	r, err := readyReflector(ctx, b, cfg)
	if err != nil {
		return nil, err
	}
	if err := r.start(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *reflecting) start() error {
	var addr string
	if err := r.call("start", nil, &addr); err != nil {
		return err
	}
	var err error
	r.conns, err = dial(addr, 1)
	return err
}

// close ends the reflector and waits for it.
func (r *reflecting) close() error { return errors.Join(r.conns.Close(), r.child.stop()) }

// kill ends it as if its machine had gone.
func (r *reflecting) kill() error { return errors.Join(r.child.kill(), r.conns.Close()) }

// status is what the reflector tells about its collection.
func (r *reflecting) status(ctx context.Context) (*reflectorv1.Reflection, error) {
	got, err := reflectorv1.NewReflectorServiceClient(r.conns[0]).ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
	if err != nil {
		return nil, err
	}
	if len(got.GetReflections()) != 1 {
		return nil, fmt.Errorf("the reflector has %d reflections, want 1", len(got.GetReflections()))
	}
	return got.GetReflections()[0], nil
}

// await returns when the reflector's state is as wanted.
func (r *reflecting) await(ctx context.Context, what string, is func(*reflectorv1.Reflection) bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := r.status(ctx)
		if err == nil && is(got) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the reflector %s is not %s: %v %s", r.holder, what, got.GetState(), got.GetLastError()), err)
		case <-tick.C:
		}
	}
}

func watching(r *reflectorv1.Reflection) bool {
	return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING
}

func waiting(r *reflectorv1.Reflection) bool {
	return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY
}

// ready tells whether a reflector stands by and has followed the log.
func ready(r *reflectorv1.Reflection) bool { return waiting(r) }
