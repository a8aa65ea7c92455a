package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/table"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// tables are those of the resources that somebody has asked for as Table.
type tables struct {
	kube *kube.Client
	log  *slog.Logger

	mu  sync.Mutex
	all map[request.Resource]*tableOf // guarded by mu
}

// tableOf is the table of a resource, as the API server had its columns lately.
type tableOf struct {
	mu    sync.Mutex
	table *table.Table // guarded by mu: nil where none is made
	until time.Time    // guarded by mu
}

const (
	// columnsFor is how long the columns of a resource are believed to stay, and columnsWithin how
	// long the API server is asked for them.
	columnsFor    = 15 * time.Second
	columnsWithin = 3 * time.Second
)

// of is the table of a resource; nil where the API server must make it.
func (t *tables) of(ctx context.Context, id request.Resource, r kube.Resource) *table.Table {
	t.mu.Lock()
	if t.all == nil {
		t.all = map[request.Resource]*tableOf{}
	}
	one := t.all[id]
	if one == nil {
		one = &tableOf{}
		t.all[id] = one
	}
	t.mu.Unlock()
	one.mu.Lock()
	defer one.mu.Unlock()
	if time.Now().Before(one.until) {
		return one.table
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), columnsWithin) // others wait for it too
	defer cancel()
	made, err := t.make(ctx, id, r)
	if err != nil {
		t.log.Debug("no tables are made of a resource", slog.String("resource", r.Name), telemetry.Err(err))
		made = nil
	}
	one.table, one.until = made, time.Now().Add(columnsFor)
	return made
}

func (t *tables) make(ctx context.Context, id request.Resource, r kube.Resource) (*table.Table, error) {
	columns, err := t.kube.Columns(ctx, r)
	if err != nil {
		return nil, err
	}
	var custom []table.Column
	if strings.Contains(r.Group, ".") {
		if custom, err = t.custom(ctx, r); err != nil {
			return nil, err
		}
	}
	return table.New(schema.GroupResource{Group: id.Group, Resource: id.Name}, columns, custom)
}

// custom are the columns of the definition of a custom resource; nil for other resources.
func (t *tables) custom(ctx context.Context, r kube.Resource) ([]table.Column, error) {
	definitions := kube.Resource{Group: "apiextensions.k8s.io", Version: "v1", Name: "customresourcedefinitions"}
	raw, err := t.kube.Get(ctx, definitions.Ref("", r.Name+"."+r.Group))
	if kube.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	columns, found, err := table.OfDefinition(raw, r.Version)
	if found || err != nil {
		return columns, err
	}
	return nil, fmt.Errorf("the definition of %s.%s has no version %s", r.Name, r.Group, r.Version)
}
