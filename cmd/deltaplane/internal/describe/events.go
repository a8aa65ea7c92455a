package describe

import (
	"context"
	"time"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/inspect"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// eventsWithin bounds what an API server that does not answer costs.
const eventsWithin = 2 * time.Second

// events adds the Events of an object: the index's where they are mirrored, and else those of the
// API server that the flags name.
func (q *question) events(ctx context.Context, index *client.Index, served []*indexv1.CollectionStatus, of *indexv1.CollectionStatus, a *Answer) {
	ctx, cancel := context.WithTimeout(ctx, eventsWithin)
	defer cancel()
	for _, c := range served {
		if c.GetGroup() == "" && c.GetResource() == "events" && c.GetCluster() == of.GetCluster() {
			if err := a.mirrored(ctx, index, c.GetCollection()); err != nil {
				a.Events, a.NoEvents = []inspect.EventAnswer{}, firstLine(err)
			}
			return
		}
	}
	var err error
	if a.Events, err = inspect.Events(ctx, &q.kube, a.Namespace, a.Name, a.Kind, a.UID); err != nil {
		a.NoEvents = "events are not mirrored, and of the API server: " + firstLine(err)
	}
}

// mirrored reads the Events of an object's namespace that are its own.
func (a *Answer) mirrored(ctx context.Context, index *client.Index, events string) error {
	o := client.ListOptions{Namespaces: []string{inspect.EventNamespace(a.Namespace)}, ReadOptions: client.ReadOptions{Fields: inspect.EventFields}}
	for e, err := range index.All(ctx, events, o) {
		if err != nil {
			return err
		}
		if e.Quarantined {
			continue
		}
		o := gjson.GetBytes(e.Payload, "involvedObject")
		about := corev1.ObjectReference{Kind: o.Get("kind").String(), Name: o.Get("name").String(), UID: types.UID(o.Get("uid").String())}
		if !inspect.About(about, a.Kind, a.Name, a.UID) {
			continue
		}
		one, err := inspect.ReadEvent(e.Payload)
		if err != nil {
			return err
		}
		a.Events = append(a.Events, one)
	}
	inspect.SortEvents(a.Events)
	return nil
}
