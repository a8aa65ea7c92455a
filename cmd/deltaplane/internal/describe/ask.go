package describe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/collections"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/explain"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/inspect"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/table"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// question is what "describe" is asked.
type question struct {
	cli.DialFlags
	kube      cli.KubeFlags
	namespace string
}

// Answer is all that is known of an object, as programs read it.
type Answer struct {
	Collection  string            `json:"collection"`
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace,omitempty"`
	Kind        string            `json:"kind"`
	APIVersion  string            `json:"api_version"`
	UID         string            `json:"uid"`
	RV          string            `json:"resource_version"`
	Created     time.Time         `json:"created,omitzero"`
	Deleted     time.Time         `json:"deletion_timestamp,omitzero"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	Owners      []string          `json:"owners"`
	Finalizers  []string          `json:"finalizers"`
	// Summary are the useful fields of a known kind, Columns the printer columns of another, whose
	// Fields follow whole.
	Summary    []Field     `json:"summary,omitempty"`
	Columns    []Field     `json:"columns,omitempty"`
	Fields     []Field     `json:"fields,omitempty"`
	Conditions []Condition `json:"conditions"`

	Events   []inspect.EventAnswer `json:"events"`
	NoEvents string                `json:"events_unknown,omitempty"`

	Index Currency `json:"index"`
	// Queues are the keys that it woke and what each waits for.
	Queues   []*why.Answer `json:"queues"`
	Silent   []why.Silence `json:"silent,omitempty"`
	Unasked  int           `json:"queues_not_asked,omitempty"`
	NoQueues string        `json:"queues_unknown,omitempty"`
}

// Field is a line: text, or of a field that has several those below it.
type Field struct {
	Name  string  `json:"name"`
	Text  string  `json:"text,omitempty"`
	Below []Field `json:"below,omitempty"`
}

// Condition is one of an object's.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// Currency is how current the index is about a collection.
type Currency struct {
	Revision string    `json:"revision"`
	Upper    string    `json:"upper"`
	Epoch    uint64    `json:"epoch"`
	State    string    `json:"state"`
	Lag      int64     `json:"lag_records"`
	Heard    time.Time `json:"heard,omitzero"`
}

// ask reads an object and what surrounds it.
func (q *question) ask(ctx context.Context, word, name string) (*Answer, error) {
	conn, err := cli.Dial(q.DialFlags.Index, q.Config)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	index := indexv1.NewIndexServiceClient(conn)
	served, err := index.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil && rpc.Code(err) != codes.Unimplemented {
		return nil, err
	}
	collection, found, err := collections.Find(served.GetCollections(), word)
	if err != nil {
		return nil, err
	}
	key, assumed := name, false
	if found.GetScope() != indexv1.KeyScope_KEY_SCOPE_CLUSTER && found != nil && !strings.Contains(name, "/") {
		key, assumed = q.namespace+"/"+name, true
	}
	answer, err := index.Get(ctx, &indexv1.GetRequest{Collection: collection, Key: key, View: indexv1.View_VIEW_FULL})
	if rpc.Reason(err) == "KEY_NOT_FOUND" && assumed {
		return nil, &cli.HintError{Err: err, Hint: fmt.Sprintf("a name without a namespace is looked for in %s: -n names another", q.namespace)}
	}
	if err != nil {
		return nil, err
	}
	a := read(answer.GetObject().GetPayload())
	a.Collection = collection
	if found != nil {
		a.Collection = found.GetCollection()
	}
	a.Index = Currency{
		Revision: answer.GetRevision().GetResourceVersion(), Upper: answer.GetUpper().GetResourceVersion(), Epoch: answer.GetRevision().GetEpoch(),
		State: show.CollectionState(found), Lag: found.GetLagRecords(),
	}
	if found.GetLiveAt() != nil {
		a.Index.Heard = found.GetLiveAt().AsTime()
	}
	if a.Summary == nil {
		a.columns(answer.GetObject().GetPayload(), collections.Columns(ctx, index, served.GetCollections(), found))
	}
	q.events(ctx, client.NewIndex(conn), served.GetCollections(), found, a)
	woken, err := explain.Woken(ctx, q.DialFlags, a.Collection, key)
	if err != nil {
		a.NoQueues = firstLine(err)
	} else {
		a.Queues, a.Silent, a.Unasked = woken.Queues, woken.Silent, woken.Unasked
	}
	a.Queues = show.OrEmpty(a.Queues)
	return a, nil
}

// read is what an object says of itself.
func read(payload []byte) *Answer {
	o := gjson.ParseBytes(payload)
	meta := o.Get("metadata")
	a := &Answer{
		Name: meta.Get("name").String(), Namespace: meta.Get("namespace").String(), Kind: o.Get("kind").String(), APIVersion: o.Get("apiVersion").String(),
		UID: meta.Get("uid").String(), RV: meta.Get("resourceVersion").String(), Created: meta.Get("creationTimestamp").Time(), Deleted: meta.Get("deletionTimestamp").Time(),
		Labels: texts(meta.Get("labels")), Annotations: texts(meta.Get("annotations")), Owners: []string{}, Finalizers: []string{}, Conditions: []Condition{},
		Events: []inspect.EventAnswer{},
	}
	delete(a.Annotations, "kubectl.kubernetes.io/last-applied-configuration") // it is the object again, of a secret its values
	for _, owner := range meta.Get("ownerReferences").Array() {
		text := owner.Get("kind").String() + "/" + owner.Get("name").String()
		if owner.Get("controller").Bool() {
			text += " (controller)"
		}
		a.Owners = append(a.Owners, text)
	}
	for _, f := range meta.Get("finalizers").Array() {
		a.Finalizers = append(a.Finalizers, f.String())
	}
	for _, c := range o.Get("status.conditions").Array() {
		if c.IsObject() {
			a.Conditions = append(a.Conditions, Condition{
				Type: c.Get("type").String(), Status: c.Get("status").String(), Reason: c.Get("reason").String(), Message: c.Get("message").String(),
				Since: c.Get("lastTransitionTime").Time(),
			})
		}
	}
	var known bool
	if a.Summary, known = summary(o); !known {
		a.Fields = fields(o)
	}
	return a
}

// columns adds the columns that a table of the object's kind has.
func (a *Answer) columns(payload []byte, custom []table.Column) {
	plain, err := table.Custom(custom)
	if err != nil || len(custom) == 0 {
		return
	}
	cells, err := plain.Cells(payload, time.Now())
	if err != nil {
		return
	}
	for i, shown := range plain.Columns {
		if cells[i] != nil && shown.Name != "Name" {
			a.Columns = append(a.Columns, Field{Name: shown.Name, Text: fmt.Sprint(cells[i])})
		}
	}
}

func texts(o gjson.Result) map[string]string {
	out := map[string]string{}
	for k, v := range o.Map() {
		out[k] = v.String()
	}
	return out
}

func firstLine(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	text, _, _ := strings.Cut(cli.Message(err), "\n")
	return text
}
