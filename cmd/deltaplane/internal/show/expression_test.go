package show

import (
	"slices"
	"strings"
	"testing"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

const web = `{"kind":"Pod","metadata":{"name":"web","namespace":"shop","labels":{"app.io/x":"y"}},
	"spec":{"containers":[{"name":"a","image":"nginx"},{"name":"b","image":"redis:8"}],"priority":12345678901},"status":{}}`

func TestCustomColumnsShowWhatIsAtTheirPaths(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		".metadata.name":                             "web",
		"metadata.name":                              "web",
		"{.metadata.name}":                           "web",
		".spec.containers[*].image":                  "nginx,redis:8",
		".spec.containers[1].name":                   "b",
		`.metadata.labels.app\.io/x`:                 "y",
		`.spec.containers[?(@.image=="nginx")].name`: "a",
		".spec.priority":                             "12345678901",
		".status.podIP":                              none,
		".nothing.at.all":                            none,
		".metadata.labels":                           `{"app.io/x":"y"}`,
	} {
		c, err := parseColumns("X:" + path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if cells, err := c.cells([]byte(web)); err != nil || !slices.Equal(cells, []string{want}) {
			t.Errorf("%s shows %q, %v; want %q", path, cells, err, want)
		}
	}
}

func TestFormatsThatCannotBeReadAreRefusedByName(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"csv":                              `"csv"`,
		"jsonpath":                         "--output jsonpath: an expression must follow",
		"jsonpath=":                        "--output jsonpath: an expression must follow",
		"jsonpath={.a[}":                   "--output jsonpath: template",
		"custom-columns=":                  "--output custom-columns: an expression must follow",
		"custom-columns=NAME":              `column "NAME": want NAME:PATH`,
		"custom-columns=A:.a,:.b":          `column ":.b": want NAME:PATH`,
		"custom-columns=A:":                `path ""`,
		"custom-columns=A:{.a}{.b}":        `path "{.a}{.b}"`,
		"custom-columns=A:.a[":             "unterminated",
		"custom-columns-file=/etc/columns": "want one of",
	} {
		if err := CheckOutput(format); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v does not say %q", format, err, want)
		}
	}
	for _, format := range []string{"table", "jsonpath={.metadata.name}", "custom-columns=A:.a,B:.b"} {
		if err := CheckOutput(format); err != nil {
			t.Errorf("%s: %v", format, err)
		}
	}
}

func TestATemplateSeesOneObjectOrAList(t *testing.T) {
	t.Parallel()
	print := func(format string, set func(*Printer)) string {
		var out strings.Builder
		p := NewPrinter(&out, "jsonpath="+format, "pods", false)
		set(p)
		for _, payload := range []string{web, strings.Replace(web, "web", "db", 1)}[:max(1, 2-btoi(p.Single))] {
			p.Add(&indexv1.Object{Key: "shop/x", Payload: []byte(payload)})
		}
		if err := p.Flush(); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		return out.String()
	}
	if got := print(`{.metadata.name}`, func(p *Printer) { p.Single = true }); got != "web" {
		t.Errorf("one: %q", got)
	}
	if got := print(`{range .items[*]}{.metadata.name} {.spec.priority}{"\n"}{end}`, func(*Printer) {}); got != "web 12345678901\ndb 12345678901\n" {
		t.Errorf("a list: %q", got)
	}
	if got := print(`{.metadata.name}`, func(p *Printer) { p.Each = true }); got != "web\ndb\n" {
		t.Errorf("each: %q", got)
	}
}

func TestAnObjectThatIsNoJSONIsNamed(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"custom-columns=A:.a", "jsonpath={.a}"} {
		p := NewPrinter(&strings.Builder{}, format, "pods", false)
		p.Each = true
		p.Add(&indexv1.Object{Key: "shop/x", Payload: []byte("{")})
		if err := p.Flush(); err == nil || !strings.Contains(err.Error(), "shop/x") {
			t.Errorf("%s: %v does not name the object", format, err)
		}
	}
}
