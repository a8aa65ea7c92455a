package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// What a ConfigMap says: in which round it was written, and when.
const (
	roundKey = "round"
	atKey    = "at"
)

var (
	configMaps = kube.Resource{Version: "v1", Name: "configmaps", Kind: "ConfigMap", Namespaced: true}
	namespaces = kube.Resource{Version: "v1", Name: "namespaces", Kind: "Namespace"}
)

// rig is all of Deltaplane beside a dev cluster, with ConfigMaps in a namespace for each side.
type rig struct {
	b     *harness.Bench
	plane *plane.Plane
	round int
}

func newRig(ctx context.Context, b *harness.Bench, name string, cfg plane.PlaneConfig) (*rig, error) {
	p, err := plane.StartPlane(ctx, b, name, cfg)
	if err != nil {
		return nil, err
	}
	r := &rig{b: b, plane: p}
	if err := errors.Join(r.mirror(ctx), r.namespace(ctx, oursName), r.namespace(ctx, peerName)); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return r, nil
}

func (r *rig) namespace(ctx context.Context, name string) error {
	body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)
	_, err := r.plane.Kube.Create(ctx, namespaces.Ref("", ""), body, kube.WriteOptions{})
	return err
}

// mirror has ConfigMaps followed.
func (r *rig) mirror(ctx context.Context) error {
	conn, err := rpc.Dial(r.plane.Cfg.Reflector, rpc.DialConfig{})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = reflectorv1.NewReflectorServiceClient(conn).AddReflection(ctx, &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: configMaps.Name}})
	return err
}

// write creates or changes n ConfigMaps of a namespace, as the next round, eight at a time or one
// every so often, and returns when that began.
func (r *rig) write(ctx context.Context, namespace string, n int, every time.Duration) (began time.Time, err error) {
	r.round++
	began = time.Now()
	if every > 0 {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := range n {
			if err := r.put(ctx, namespace, i); err != nil {
				return began, err
			}
			<-tick.C
		}
		return began, nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error { return r.put(ctx, namespace, i) })
	}
	return began, g.Wait()
}

func nameOf(i int) string { return "m-" + strconv.Itoa(i) }

func (r *rig) put(ctx context.Context, namespace string, i int) error {
	data := map[string]any{"data": map[string]string{roundKey: strconv.Itoa(r.round), atKey: strconv.FormatInt(time.Now().UnixNano(), 10)}}
	body, err := json.Marshal(data)
	if err != nil {
		return err
	}
	_, err = r.plane.Kube.Patch(ctx, configMaps.Ref(namespace, nameOf(i)), kube.MergePatch, body, kube.WriteOptions{})
	if !kube.IsNotFound(err) {
		return err
	}
	data["metadata"], data["apiVersion"], data["kind"] = map[string]string{"namespace": namespace, "name": nameOf(i)}, "v1", "ConfigMap"
	if body, err = json.Marshal(data); err != nil {
		return err
	}
	_, err = r.plane.Kube.Create(ctx, configMaps.Ref(namespace, ""), body, kube.WriteOptions{})
	return err
}

// operators starts replicas, of ours or of the peer.
func (r *rig) operators(ctx context.Context, n int, cfg operatorConfig, peer bool) ([]*harness.Child, error) {
	var all []*harness.Child
	if peer {
		cfg.API = r.plane.Cfg.API
	} else {
		cfg.Index, cfg.Queue = r.plane.Cfg.Index, r.plane.Cfg.Queue
	}
	journal := cfg.Journal
	for i := range n {
		if journal != "" {
			cfg.Journal = r.b.PathIn(journal + "-" + strconv.Itoa(i))
		}
		c, err := r.b.Spawn(ctx, "operator", harness.Place{}, cfg, nil)
		if err != nil {
			return all, errors.Join(err, stop(all))
		}
		all = append(all, c)
	}
	return all, nil
}

func stop(all []*harness.Child) (err error) {
	for _, c := range all {
		err = errors.Join(err, c.Stop())
	}
	return err
}

// handled adds up what replicas did in the current round.
func (r *rig) handled(all []*harness.Child) (handled, error) {
	sum := handled{Delays: map[string]time.Duration{}}
	for _, c := range all {
		var h handled
		if err := c.Call("handled", strconv.Itoa(r.round), &h); err != nil {
			return sum, err
		}
		maps.Copy(sum.Delays, h.Delays)
		sum.Last, sum.Runs = harness.Later(sum.Last, h.Last), sum.Runs+h.Runs
	}
	return sum, nil
}

// await waits until replicas have handled n keys of the current round.
func (r *rig) await(ctx context.Context, all []*harness.Child, n int) (sum handled, err error) {
	err = harness.Await(ctx, 2*time.Minute, fmt.Sprintf("not all %d keys were reconciled", n), func() (bool, error) {
		var err error
		sum, err = r.handled(all)
		return len(sum.Delays) == n, err
	})
	return sum, err
}
