package wire

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/deltaplane/deltaplane/core/store"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/define"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// chooser makes questions, and what they are asked of.
type chooser struct{ *rand.Rand }

// crowd is a random population of pods with few names, so that selectors
// meet.
func (r chooser) crowd(n int) []podFacts {
	pods := make([]podFacts, n)
	seen := map[string]bool{}
	for i := range pods {
		p := &pods[i]
		for {
			p.namespace, p.name = []string{"a", "a-b", "b", "kube", "z.z"}[r.IntN(5)], fmt.Sprintf("pod-%d", r.IntN(4*n))
			if !seen[p.key()] {
				break
			}
		}
		seen[p.key()] = true
		p.labels = map[string]string{}
		for _, name := range []string{"app", "tier", "x.io/track", "n"} {
			if r.IntN(2) == 0 {
				p.labels[name] = []string{"web", "db", "", "1", "20", "3.0"}[r.IntN(6)]
			}
		}
		p.node = []string{"", "n1", "n2", "n3"}[r.IntN(4)]
		p.phase = []string{"Running", "Pending", "Failed"}[r.IntN(3)]
		p.unreadable = r.IntN(20) == 0
	}
	return pods
}

func (r chooser) labelSelector() string {
	var terms []string
	for range r.IntN(4) {
		name := []string{"app", "tier", "x.io/track", "n", "none"}[r.IntN(5)]
		value := func() string { return []string{"web", "db", "", "1", "20", "3.0", "other"}[r.IntN(7)] }
		terms = append(terms, []string{
			name, "!" + name, name + "=" + value(), name + "==" + value(), name + "!=" + value(),
			name + " in (" + value() + "," + value() + ")", name + " notin (" + value() + "," + value() + ")",
			name + ">" + fmt.Sprint(r.IntN(30)), name + "<" + fmt.Sprint(r.IntN(30)),
		}[r.IntN(9)])
	}
	if r.IntN(6) == 0 { // more than are looked at one by one
		for i := range 12 {
			terms = append(terms, fmt.Sprintf("absent-%d!=x", i))
		}
		terms = append(terms, "app notin (web,db)")
	}
	return strings.Join(terms, ",")
}

type fieldTerm struct {
	path, value string
	not         bool
}

func (r chooser) fieldSelector() (text string, terms []fieldTerm) {
	var list []string
	for range r.IntN(3) {
		t := fieldTerm{path: []string{"metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"}[r.IntN(4)], not: r.IntN(3) == 0}
		t.value = map[string][]string{
			"metadata.name": {"pod-1", "pod-7", "pod-12"}, "metadata.namespace": {"a", "b", "a-b"},
			"spec.nodeName": {"", "n1", "n2", "nx"}, "status.phase": {"Running", "Pending", ""},
		}[t.path][r.IntN(3)]
		op := "="
		if t.not {
			op = "!="
		}
		list, terms = append(list, t.path+op+t.value), append(terms, t)
	}
	return strings.Join(list, ","), terms
}

// chosen is what a request means, written down plainly.
func (p *podFacts) chosen(namespaces []string, sel labels.Selector, terms []fieldTerm, nodes []string) bool {
	if len(namespaces) > 0 && !slices.Contains(namespaces, p.namespace) {
		return false
	}
	for _, t := range terms {
		var got string
		switch t.path {
		case "metadata.name":
			got = p.name
		case "metadata.namespace":
			got = p.namespace
		case "spec.nodeName":
			got = p.node
		case "status.phase":
			got = p.phase
		}
		if p.unreadable && !strings.HasPrefix(t.path, "metadata") {
			continue // cannot be known
		}
		if (got == t.value) == t.not {
			return false
		}
	}
	if !p.unreadable && !sel.Matches(labels.Set(p.labels)) {
		return false
	}
	return nodes == nil || !p.unreadable && slices.Contains(nodes, p.node)
}

func decodeAnswer[M proto.Message](t *testing.T, o *message.Writer, err error, into M) M {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer o.Free()
	if err := proto.Unmarshal(o.Bytes(), into); err != nil {
		t.Fatal(err)
	}
	return into
}

// The names of objects that could not be read stand beside them, and count for
// the page; so do those beside keys.
func TestNamesOfUnreadableObjectsCountForTheSizeOfAnAnswer(t *testing.T) {
	t.Parallel()
	const most, answer, slack = 64 << 10, 100 << 10, 1 << 10
	s := serving(t, func(c *testConfig) { c.MaxPageBytes, c.MaxResponseBytes = most, answer })
	var pods []podFacts
	for i := range 150 {
		pods = append(pods, podFacts{namespace: strings.Repeat("n", 250), name: fmt.Sprintf("%0250d", i), unreadable: true})
	}
	c := s.fill(t, "eu", pods)
	s.fill(t, "us", pods)
	for _, req := range []*indexv1.ListRequest{{Collection: c.Name}, {Collection: "pods.v1", Clusters: []string{"*"}}} {
		found, want := 0, len(pods)*max(1, 2*len(req.GetClusters()))
		for again := true; again; again = req.GetPageToken() != "" {
			o, err := s.list(t.Context(), req)
			resp := decodeAnswer(t, o, err, &indexv1.ListResponse{})
			if n := proto.Size(resp); n > most+slack {
				t.Errorf("a page of %d objects has %d bytes, at most %d", len(resp.GetObjects()), n, most)
			}
			if len(resp.GetQuarantinedKeys()) != len(resp.GetObjects()) {
				t.Errorf("%d of %d objects are named", len(resp.GetQuarantinedKeys()), len(resp.GetObjects()))
			}
			found += len(resp.GetObjects())
			req.PageToken = resp.GetNextPageToken()
		}
		if found != want {
			t.Errorf("%d objects of %d", found, want)
		}
	}
	req := &indexv1.IndexKeysRequest{Collection: c.Name, Index: define.NamespaceIndex, Value: strings.Repeat("n", 250)}
	if resp, err := s.IndexKeys(t.Context(), req); err == nil {
		t.Errorf("%d keys, and the names of %d, take %d bytes, at most %d", len(resp.GetKeys()), len(resp.GetQuarantinedKeys()), proto.Size(resp), answer)
	}
	example := fmt.Appendf(nil, `{"metadata":{"name":"a","namespace":%q}}`, strings.Repeat("n", 250))
	if o, err := s.byExample(t.Context(), &indexv1.IndexRequest{Collection: c.Name, Index: define.NamespaceIndex, Object: example}); err == nil {
		resp := decodeAnswer(t, o, err, &indexv1.IndexResponse{})
		t.Errorf("%d objects like an example, and the names of %d, take %d bytes, at most %d", len(resp.GetObjects()), len(resp.GetQuarantinedKeys()), proto.Size(resp), answer)
	} else if !errors.Is(err, fault.ErrTooLarge) {
		t.Error(err)
	}
}

func TestListByIndexAndCountFindWhatALookAtEveryObjectDoes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := chooser{rand.New(rand.NewPCG(seed, 11))}
			s := serving(t, nil)
			clusters := map[string][]podFacts{}
			for _, cluster := range []string{"eu", "us", "za"} {
				clusters[cluster] = r.crowd(20 + r.IntN(100))
				if seed%3 == 0 { // without a fault the indexes are used in another way
					for i := range clusters[cluster] {
						clusters[cluster][i].unreadable = false
					}
				}
				s.fill(t, cluster, clusters[cluster])
			}
			for range 150 {
				s.compare(t, r, clusters)
			}
		})
	}
}

// compare asks one random question by every method that can answer it.
func (s *server) compare(t *testing.T, r chooser, clusters map[string][]podFacts) {
	t.Helper()
	ctx := t.Context()
	var namespaces, asked, nodes []string
	for range r.IntN(3) {
		namespaces = append(namespaces, []string{"a", "a-b", "b", "kube", "none"}[r.IntN(5)])
	}
	text := r.labelSelector()
	fieldText, terms := r.fieldSelector()
	sel, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	collection := "pods"
	switch r.IntN(3) {
	case 0:
		collection, asked = "eu/pods.v1", nil
	case 1:
		asked = []string{"*"}
	default:
		asked = []string{"za", "eu", "za"}
	}
	read := []string{"eu"}
	if asked != nil && asked[0] == "*" {
		read = []string{"eu", "us", "za"}
	} else if asked != nil {
		read = []string{"eu", "za"}
	}
	if r.IntN(2) == 0 {
		nodes = []string{[]string{"n1", "n2", "nx"}[r.IntN(3)], "n3"}[:1+r.IntN(2)]
	}
	var want, faulty, places []string
	for _, cluster := range read {
		var keys []podFacts
		for _, p := range clusters[cluster] {
			if p.chosen(namespaces, sel, terms, nodes) {
				keys = append(keys, p)
			}
		}
		slices.SortFunc(keys, func(a, b podFacts) int {
			return slices.Compare([]string{a.namespace, a.name}, []string{b.namespace, b.name})
		})
		for _, p := range keys {
			name := cluster + " " + p.key()
			if want = append(want, name); p.unreadable {
				if faulty = append(faulty, p.key()); asked != nil {
					places = append(places, name)
				}
			}
		}
	}
	view := indexv1.View(r.IntN(4))
	size := int32(1 + r.IntN(30))
	what := fmt.Sprintf("%q %q %q in %q of %q, nodes %q, view %v, pages of %d", text, fieldText, namespaces, collection, asked, nodes, view, size)
	var got, bad, located []string
	note := func(objects []*indexv1.Object, quarantined []string, named []*indexv1.QuarantinedKey) {
		for _, o := range objects {
			cluster, _, _ := strings.Cut(o.GetCollection(), "/")
			if asked == nil {
				cluster = "eu"
			}
			got = append(got, cluster+" "+o.GetKey())
		}
		bad = append(bad, quarantined...)
		for _, q := range named {
			cluster, rest, _ := strings.Cut(q.GetCollection(), "/")
			if rest != "pods.v1" {
				t.Fatalf("%s: %v is quarantined", what, q)
			}
			located = append(located, cluster+" "+q.GetKey())
		}
	}
	for token := ""; ; {
		if nodes == nil {
			req := &indexv1.ListRequest{Collection: collection, Clusters: asked, Namespaces: namespaces, LabelSelector: text, FieldSelector: fieldText, PageSize: size, PageToken: token, View: view}
			o, err := s.list(ctx, req)
			resp := decodeAnswer(t, o, err, &indexv1.ListResponse{})
			note(resp.GetObjects(), resp.GetQuarantinedKeys(), resp.GetQuarantined())
			left := int64(len(want) - len(got))
			if exact := text == "" && fieldText == ""; resp.GetRemaining() < left || exact && resp.GetRemaining() != left {
				t.Fatalf("%s: %d remain, of which %d were told", what, left, resp.GetRemaining())
			}
			if (asked == nil) == (resp.GetRevision() == nil) || (asked == nil) != (len(resp.GetRevisions()) == 0) {
				t.Fatalf("%s: revision %v, revisions %v", what, resp.GetRevision(), resp.GetRevisions())
			}
			token = resp.GetNextPageToken()
		} else {
			req := &indexv1.ByIndexRequest{Collection: collection, Clusters: asked, Index: "node", Values: nodes, Namespaces: namespaces, LabelSelector: text, FieldSelector: fieldText, PageSize: size, PageToken: token, View: view}
			o, err := s.byIndex(ctx, req)
			resp := decodeAnswer(t, o, err, &indexv1.ByIndexResponse{})
			note(resp.GetObjects(), resp.GetQuarantinedKeys(), resp.GetQuarantined())
			token = resp.GetNextPageToken()
		}
		if token == "" || len(got) > len(want) {
			break
		}
	}
	if !slices.Equal(got, want) || !slices.Equal(bad, faulty) || !slices.Equal(located, places) {
		t.Fatalf("%s:\n got %q\nwant %q\nquarantined %q, %q\n       want %q, %q", what, got, want, bad, located, faulty, places)
	}
	req := &indexv1.CountRequest{Collection: collection, Clusters: asked, Namespaces: namespaces, LabelSelector: text, FieldSelector: fieldText}
	if nodes != nil {
		req.Index, req.Values = "node", nodes
	}
	n, err := s.Count(ctx, req)
	if err != nil || n.GetCount() != int64(len(want)) || n.GetQuarantined() != int64(len(faulty)) {
		t.Fatalf("%s: count = %v, %v, want %d, quarantined %d", what, n, err, len(want), len(faulty))
	}
}

func TestAFaultyObjectDoesNotMakeSelectorsLookAtAllOthers(t *testing.T) {
	t.Parallel()
	s := serving(t, nil)
	pods := herd(300, 3, 0)
	c := s.fill(t, "dev", pods)
	c.Store().Apply(store.Batch{Ops: []store.Op{{Doubt: &store.Doubt{Key: pods[7].key(), Epoch: 1, Sequence: 10_000, Fault: "checksum"}}}}, time.Now())
	var ch filter.Choice
	if err := ch.Selectors("app=a3", ""); err != nil {
		t.Fatal(err)
	}
	f, err := filter.New(c, ch)
	if err != nil {
		t.Fatal(err)
	}
	snap := c.Snapshot()
	src, err := f.Source(snap)
	if err != nil || snap.Faults() != 1 || src.Whole || src.Total != 6+1 || src.Exact {
		t.Errorf("source() holds %d of %d objects (whole %v, exact %v, %d faults), %v; want the 6 with the label and the faulty one",
			src.Total, snap.Len(), src.Whole, src.Exact, snap.Faults(), err)
	}
}
