package show

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltaplane/deltaplane/internal/table"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// columns are those of one kind of objects.
type columns struct {
	plain      *table.Plain
	namespaced bool
	wide       bool
	own        []column // ours, behind kubectl's
}

// column is a column of ours, read straight from an object's JSON.
type column struct {
	name string
	wide bool
	cell func(payload []byte) string
}

// columnsOf are the columns of an object's kind: kubectl's for a built-in one, and else those of
// custom, if any, or its age.
func columnsOf(payload []byte, wide bool, custom []table.Column) (*columns, error) {
	kind := gjson.GetBytes(payload, "kind").String()
	plural, _ := meta.UnsafeGuessKindToResource(schema.FromAPIVersionAndKind(gjson.GetBytes(payload, "apiVersion").String(), kind))
	c := &columns{plain: table.Builtin(plural.GroupResource()), namespaced: gjson.GetBytes(payload, "metadata.namespace").Exists(), wide: wide}
	if c.plain == nil || len(custom) > 0 {
		var err error
		if c.plain, err = table.Custom(custom); err != nil {
			return nil, err
		}
	}
	switch kind {
	case "Node":
		c.own = []column{{"Taints", false, nodeTaints}, {"Zone", true, at(`metadata.labels.topology\.kubernetes\.io/zone`)}}
	case "Lease":
		c.own = []column{{"Renewed", true, at("spec.renewTime")}}
	}
	c.own = append(c.own, column{"Resource-Version", true, at("metadata.resourceVersion")}, column{"UID", true, at("metadata.uid")})
	return c, nil
}

func at(path string) func([]byte) string {
	return func(payload []byte) string { return Dash(gjson.GetBytes(payload, path).String()) }
}

func (c *columns) names() (names []string) {
	if c.namespaced {
		names = append(names, "NAMESPACE")
	}
	for _, shown := range c.plain.Columns {
		if c.wide || !shown.Wide {
			names = append(names, strings.ToUpper(shown.Name))
		}
	}
	for _, own := range c.own {
		if c.wide || !own.wide {
			names = append(names, strings.ToUpper(own.name))
		}
	}
	return names
}

func (c *columns) cells(o *indexv1.Object, now time.Time) (cells []string, err error) {
	payload := o.GetPayload()
	values, err := c.plain.Cells(payload, now)
	if err != nil {
		return nil, err
	}
	if c.namespaced {
		cells = append(cells, gjson.GetBytes(payload, "metadata.namespace").String())
	}
	for i, shown := range c.plain.Columns {
		if !c.wide && shown.Wide {
			continue
		}
		text := ""
		if values[i] != nil {
			text = Printable(fmt.Sprint(values[i]))
		}
		if shown.Name == "Status" && stopped(payload) {
			text += ",Stopped" // its agent was instructed to fall silent; the cluster may not have noticed yet
		}
		cells = append(cells, text)
	}
	for _, own := range c.own {
		if c.wide || !own.wide {
			cells = append(cells, own.cell(payload))
		}
	}
	return cells, nil
}

// stopped says of a simulated node that it was instructed to fall silent.
func stopped(payload []byte) bool {
	return gjson.GetBytes(payload, "kind").String() == "Node" &&
		gjson.GetBytes(payload, `metadata.annotations.deltaplane\.io/stopped`).String() == "true"
}

func nodeTaints(payload []byte) string {
	var taints []string
	for _, t := range gjson.GetBytes(payload, "spec.taints").Array() {
		taints = append(taints, t.Get("key").String()+":"+t.Get("effect").String())
	}
	return Dash(strings.Join(taints, ","))
}

// Dash is s, or a dash in place of nothing.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Printable is text that others chose, as a terminal and a table may have it: quoted when it holds
// control characters.
func Printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// ShortDuration is a duration as people read it in tables: its two greatest units at most.
func ShortDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}
