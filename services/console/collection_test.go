package console_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/deltaplane/deltaplane/internal/kube"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/console"
)

var configMaps = kube.Resource{Version: "v1", Name: "configmaps", Kind: "ConfigMap", Namespaced: true}

// put writes a config map.
func (r *rig) put(name, value string) {
	r.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default","labels":{"app":%q}},"data":{"v":%q}}`, name, value, value)
	if _, err := r.kube.Create(r.t.Context(), configMaps.Ref("default", ""), []byte(body), kube.WriteOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// shown is what a page has of a collection: it follows the updates as the contract says.
type shown struct {
	columns []string
	keys    []string
	rows    map[string]*consolev1.Row
	total   uint32
	offset  uint32
	state   string
	failed  uint32
}

func (s *shown) take(m *consolev1.OpenResponse) {
	r := m.GetRows()
	if r == nil {
		return
	}
	if len(r.GetColumns()) > 0 {
		s.columns = nil
		for _, c := range r.GetColumns() {
			s.columns = append(s.columns, c.GetName())
		}
	}
	if s.rows == nil {
		s.rows = map[string]*consolev1.Row{}
	}
	if r.GetKeysChanged() {
		s.keys = r.GetKeys()
	}
	for _, row := range r.GetRows() {
		s.rows[row.GetKey()] = row
	}
	for key := range s.rows {
		if !slices.Contains(s.keys, key) {
			delete(s.rows, key)
		}
	}
	s.total, s.offset, s.state, s.failed = r.GetTotal(), r.GetOffset(), r.GetState(), r.GetFailed()
}

// whole reports whether each key has a row.
func (s *shown) whole() bool { return s.state == "serving" && len(s.rows) == len(s.keys) }

func collection(v *consolev1.CollectionView) *consolev1.SubscribeRequest {
	return &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Collection{Collection: v}}
}

func TestACollectionIsShownInRangesThatFollowItsChanges(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	for i := range 30 {
		r.put(fmt.Sprintf("c%02d", i), fmt.Sprint(i%3))
	}
	p := r.open()
	var s shown
	ask := &consolev1.CollectionView{Collection: "configmaps", Offset: 5, Limit: 10}
	p.subscribe(7, collection(ask))
	p.until("a range", func(m *consolev1.OpenResponse) bool { s.take(m); return s.whole() && s.total == 30 })
	if want := []string{"Name", "Data", "Age"}; !slices.Equal(s.columns, want) {
		t.Errorf("columns are %v, want %v", s.columns, want)
	}
	if s.keys[0] != "default/c05" || len(s.keys) != 10 || s.offset != 5 {
		t.Errorf("the range is %v from %d", s.keys, s.offset)
	}
	if row := s.rows["default/c05"]; row.GetCells()[0] != "c05" || row.GetCells()[1] != "1" || !strings.HasPrefix(row.GetCells()[2], "20") {
		t.Errorf("a row is %v", row)
	}

	// A change in the range, a deletion before it and an addition behind it.
	if _, err := r.kube.Patch(t.Context(), configMaps.Ref("default", "c07"), kube.MergePatch, []byte(`{"data":{"w":"2"}}`), kube.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.kube.Delete(t.Context(), configMaps.Ref("default", "c00"), kube.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.put("c99", "0")
	p.until("the changes", func(m *consolev1.OpenResponse) bool {
		s.take(m)
		row := s.rows["default/c07"]
		return s.whole() && s.total == 30 && s.keys[0] == "default/c06" && len(row.GetCells()) > 1 && row.GetCells()[1] == "2"
	})

	// Another range of the same question sends the rows that were not there.
	sent := 0
	p.subscribe(7, collection(&consolev1.CollectionView{Collection: "configmaps", Offset: 8, Limit: 10}))
	p.until("another range", func(m *consolev1.OpenResponse) bool {
		s.take(m)
		sent += len(m.GetRows().GetRows())
		return s.whole() && s.keys[0] == "default/c09"
	})
	if sent != 3 {
		t.Errorf("%d rows were sent for a range that has 3 others", sent)
	}

	for name, c := range map[string]struct {
		view *consolev1.CollectionView
		want uint32
	}{
		"a namespace":      {&consolev1.CollectionView{Namespace: "other"}, 0},
		"a label selector": {&consolev1.CollectionView{LabelSelector: "app=1"}, 10},
		"an index":         {&consolev1.CollectionView{Index: "label", IndexValue: "app=2"}, 10},
		"an expression":    {&consolev1.CollectionView{Cel: `object.data.v == "0" && size(object.data) > 0`}, 10},
		"a text":           {&consolev1.CollectionView{Text: "c1"}, 10},
		"all of these":     {&consolev1.CollectionView{Namespace: "default", LabelSelector: "app!=0", Cel: `object.data.v != "2"`, Text: "2"}, 3},
	} {
		c.view.Collection, c.view.Limit = "dev/configmaps.v1", 50
		var s shown
		p.subscribe(8, collection(c.view))
		p.until(name, func(m *consolev1.OpenResponse) bool {
			if m.GetSubscription() == 8 {
				s.take(m)
			}
			return s.whole() && s.total == c.want
		})
	}
}

func TestWhatCannotBeAskedOfACollectionIsRefusedOrSaid(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	r.put("one", "1")
	p := r.open()
	for name, v := range map[string]*consolev1.CollectionView{
		"too many rows":                     {Collection: "configmaps", Limit: 501},
		"an expression that does not parse": {Collection: "configmaps", Cel: "object."},
		"an expression that is no bool":     {Collection: "configmaps", Cel: "1 + 1"},
	} {
		if err := p.subscribes(1, collection(v)); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.subscribe(1, collection(&consolev1.CollectionView{Collection: "dev/nothing.v1", Limit: 5}))
	p.until("that there is no such collection", func(m *consolev1.OpenResponse) bool { return m.GetFailure().GetReason() == "COLLECTION_NOT_FOUND" })
	p.subscribe(1, collection(&consolev1.CollectionView{Collection: "configmaps", LabelSelector: "a in", Limit: 5}))
	p.until("that the selector is wrong", func(m *consolev1.OpenResponse) bool {
		return m.GetFailure().GetCode() == int32(connect.CodeInvalidArgument)
	})
	p.subscribe(1, collection(&consolev1.CollectionView{Collection: "configmaps", Cel: `object.data.missing == "x"`, Limit: 5}))
	p.until("on how many objects the expression fails", func(m *consolev1.OpenResponse) bool { return m.GetRows().GetFailed() == 1 })
}

func TestRowsThatCouldNotBeFetchedAreFetchedAgain(t *testing.T) {
	t.Parallel()
	index := &broken{method: indexv1.IndexService_BatchGet_FullMethodName}
	index.set(true)
	r := start(t, func(_ *console.Config, d *console.Deps) {
		index.ClientConnInterface, d.Index.Conn = d.Index.Conn, index
	})
	r.put("one", "1")
	p := r.open()
	var s shown
	p.subscribe(1, collection(&consolev1.CollectionView{Collection: "dev/configmaps.v1", Limit: 5}))
	p.until("that the row cannot be fetched", func(m *consolev1.OpenResponse) bool {
		s.take(m)
		return s.rows["default/one"].GetFault() != ""
	})
	index.set(false)
	p.until("the row", func(m *consolev1.OpenResponse) bool {
		s.take(m)
		row := s.rows["default/one"]
		return row.GetFault() == "" && len(row.GetCells()) > 0
	})
}

func TestAnObjectIsShownAgainOnceTheIndexIsBack(t *testing.T) {
	t.Parallel()
	index := &broken{method: indexv1.IndexService_Watch_FullMethodName}
	r := start(t, func(_ *console.Config, d *console.Deps) {
		index.ClientConnInterface, d.Index.Conn = d.Index.Conn, index
	})
	r.put("one", "first")
	p := r.open()
	p.subscribe(1, &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Object{Object: &consolev1.ObjectView{Collection: "dev/configmaps.v1", Key: "default/one"}}})
	there := func(m *consolev1.OpenResponse) bool { return m.GetObject().GetPresent() }
	seen := p.until("the object", there).GetObject().GetSeenAt()
	index.set(true)
	p.until("that the index is away", func(m *consolev1.OpenResponse) bool { return m.GetFailure() != nil })
	index.set(false)
	if m := p.until("the object again", there).GetObject(); !m.GetSeenAt().AsTime().Equal(seen.AsTime()) {
		t.Errorf("an object that did not change is seen at %v, want %v", m.GetSeenAt().AsTime(), seen.AsTime())
	}
}

func TestAnObjectIsShownLiveAndAfterItsDeletion(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	p := r.open()
	p.subscribe(1, &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Object{Object: &consolev1.ObjectView{Collection: "configmaps", Key: "default/one"}}})
	p.until("that there is none", func(m *consolev1.OpenResponse) bool { o := m.GetObject(); return o != nil && !o.GetPresent() })
	r.put("one", "first")
	p.until("the object", func(m *consolev1.OpenResponse) bool {
		o := m.GetObject()
		return o.GetPresent() && strings.Contains(o.GetYaml(), "v: first") && o.GetUid() != ""
	})
	if _, err := r.kube.Delete(t.Context(), configMaps.Ref("default", "one"), kube.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.until("its last state", func(m *consolev1.OpenResponse) bool {
		o := m.GetObject()
		return o != nil && !o.GetPresent() && strings.Contains(o.GetYaml(), "v: first")
	})
}
