package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// ReflectorLease is what reflectors have by default.
const ReflectorLease = 3 * time.Second

// ReflectorConfig is a reflector of pods, on a log and an API server in other
// processes. Everything else is as by default.
type ReflectorConfig struct {
	NATS       string `json:"nats"`
	URL        string `json:"url"` // of the API server; or
	Kubeconfig string `json:"kubeconfig"`
	Holder     string `json:"holder"`
}

// ReflectorServer is the servant that is one reflector, from when it is instructed to start.
func ReflectorServer(_ context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg ReflectorConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	s := &harness.Servant{}
	s.Ops = map[string]harness.Op{"start": func(ctx context.Context, _ json.RawMessage) (addr any, err error) {
		addr, s.Stop, err = StartReflector(ctx, cfg)
		return addr, err
	}}
	return s, nil
}

// StartReflector runs a reflector in this process and returns its address.
func StartReflector(ctx context.Context, cfg ReflectorConfig) (string, func() error, error) {
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
		Cluster: population.PodsCollection.Cluster, Resources: []reflector.Resource{{Name: "pods.v1"}}, Holder: cfg.Holder,
		LeaseTTL: ReflectorLease,
	}, conn, client, tel)
	if err != nil {
		return "", nil, err
	}
	stop := harness.InBackground(ctx, s.Run)
	addr, err := s.Addr(ctx)
	return addr, func() error { defer conn.Close(); return stop() }, err
}

// Reflecting is the parent's side of a reflector.
type Reflecting struct {
	*harness.Child
	Holder string
	conns  load.Pool
}

// ReadyReflector makes the child of a reflector, which is not started yet.
func ReadyReflector(ctx context.Context, b *harness.Bench, cfg ReflectorConfig) (*Reflecting, error) {
	c, err := b.Spawn(ctx, "reflector", harness.Place{}, cfg, nil)
	return &Reflecting{Child: c, Holder: cfg.Holder}, err
}

// SpawnReflector runs a reflector in a child.
func SpawnReflector(ctx context.Context, b *harness.Bench, cfg ReflectorConfig) (*Reflecting, error) {
	r, err := ReadyReflector(ctx, b, cfg)
	if err != nil {
		return nil, err
	}
	if err := r.Start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Start starts the service in the child.
func (r *Reflecting) Start() error {
	var addr string
	if err := r.Call("start", nil, &addr); err != nil {
		return err
	}
	var err error
	r.conns, err = load.Dial(addr, 1)
	return err
}

// Close ends the reflector and waits for it.
func (r *Reflecting) Close() error { return errors.Join(r.conns.Close(), r.Child.Stop()) }

// Kill ends it as if its machine had gone.
func (r *Reflecting) Kill() error { return errors.Join(r.Child.Kill(), r.conns.Close()) }

// Status is what the reflector tells about its collection.
func (r *Reflecting) Status(ctx context.Context) (*reflectorv1.Reflection, error) {
	got, err := reflectorv1.NewReflectorServiceClient(r.conns[0]).ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
	if err != nil {
		return nil, err
	}
	if len(got.GetReflections()) != 1 {
		return nil, fmt.Errorf("the reflector has %d reflections, want 1", len(got.GetReflections()))
	}
	return got.GetReflections()[0], nil
}

// Await returns when the reflector's state is as wanted.
func (r *Reflecting) Await(ctx context.Context, what string, is func(*reflectorv1.Reflection) bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := r.Status(ctx)
		if err == nil && is(got) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the reflector %s is not %s: %v %s", r.Holder, what, got.GetState(), got.GetLastError()), err)
		case <-tick.C:
		}
	}
}

// Watching says that a collection has been listed and is watched.
func Watching(r *reflectorv1.Reflection) bool {
	return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING
}

func waiting(r *reflectorv1.Reflection) bool {
	return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY
}

// Ready tells whether a reflector stands by and has followed the log.
func Ready(r *reflectorv1.Reflection) bool { return waiting(r) }
