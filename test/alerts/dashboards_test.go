package alerts

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheDashboardsAreMadeOfWhatIsHere(t *testing.T) {
	t.Parallel()
	made := map[string]bool{}
	for _, d := range Dashboards() {
		text, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		path := monitoring + "dashboards/" + strings.TrimPrefix(d.UID, "deltaplane-") + ".json"
		golden(t, path, string(text)+"\n")
		made[path] = true
		var k struct {
			Generators []struct{ Files []string } `yaml:"configMapGenerator"`
		}
		read(t, monitoring+"kustomization.yaml", &k)
		if len(k.Generators) != 1 || !strings.Contains(strings.Join(k.Generators[0].Files, " "), filepath.Base(path)) {
			t.Errorf("kustomization.yaml does not load %s", path)
		}
	}
	files, err := filepath.Glob(monitoring + "dashboards/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !made[file] {
			t.Errorf("%s is made of nothing", file)
		}
	}
}

// grafana is what is read of a dashboard, as Grafana would.
type grafana struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Type string }
	}
	Panels []struct {
		ID          int
		Type, Title string
		GridPos     struct{ X, Y, W, H int }
		Datasource  struct{ UID string }
		FieldConfig struct{ Defaults struct{ Unit string } }
		Targets     []struct {
			RefID, Expr string
			Datasource  struct{ UID string }
		}
	}
}

func TestDashboardsAreWholeAndNameOnlyWhatThereIs(t *testing.T) {
	t.Parallel()
	c, uids := metrics(t), map[string]bool{}
	for _, d := range Dashboards() {
		text, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		var g grafana
		if err := json.Unmarshal(text, &g); err != nil {
			t.Fatal(err)
		}
		if g.UID == "" || uids[g.UID] || !strings.HasSuffix(d.Answers, "?") {
			t.Errorf("%s: its uid %q is another's, or it answers no question: %q", g.Title, g.UID, d.Answers)
		}
		uids[g.UID] = true
		variables := map[string]bool{"__rate_interval": true}
		for _, v := range g.Templating.List {
			variables[v.Name] = true
		}
		if g.Templating.List[0].Type != "datasource" {
			t.Errorf("%s: its first variable is %+v, not the data source", g.Title, g.Templating.List[0])
		}
		ids, taken, titles := map[int]bool{}, map[[2]int]string{}, map[string]bool{}
		for _, p := range g.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels have the id %d", g.Title, p.ID)
			}
			ids[p.ID] = true
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if other, ok := taken[at]; ok || at[0] >= 24 {
						t.Fatalf("%s: %q lies over %q", g.Title, p.Title, other)
					}
					taken[at] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.Title == "" || titles[p.Title] || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
				t.Errorf("%s: panel %q needs a title of its own, a unit, the data source that was picked and an expression", g.Title, p.Title)
			}
			titles[p.Title] = true
			refs := map[string]bool{}
			for _, target := range p.Targets {
				if target.Datasource.UID != "${datasource}" || refs[target.RefID] {
					t.Errorf("%s: %q has the data source %q and the reference %s", g.Title, p.Title, target.Datasource.UID, target.RefID)
				}
				refs[target.RefID] = true
				for _, fault := range c.faults(plain(target.Expr)) {
					t.Errorf("%s: %q: %s", g.Title, p.Title, fault)
				}
				for _, used := range picked.FindAllStringSubmatch(target.Expr, -1) {
					if !variables[used[1]] {
						t.Errorf("%s: %q has the variable %q, which the page has not", g.Title, p.Title, used[1])
					}
				}
			}
		}
		for _, p := range d.Pick {
			known, ok := c.of(p.Metric)
			if !ok || !strings.Contains(strings.Join(known, " "), p.Label) {
				t.Errorf("%s: %s is of %s{%s}, which there is not", g.Title, p.Name, p.Metric, p.Label)
			}
		}
	}
}
