package describe

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// part is a line of a kind's summary: what is at a path, or what of makes of the object.
type part struct {
	name, path string
	of         func(o gjson.Result) *Field
}

func at(name, path string) part { return part{name: name, path: path} }

// selector is a label selector as kubectl writes it.
func selector(name, path string) part {
	return part{name: name, of: func(o gjson.Result) *Field {
		s := o.Get(path)
		labels := s.Get("matchLabels")
		if !labels.Exists() && !s.Get("matchExpressions").Exists() {
			labels = s
		}
		var terms []string
		for _, k := range sortedKeys(labels) {
			terms = append(terms, k+"="+labels.Get(gjson.Escape(k)).String())
		}
		for _, e := range s.Get("matchExpressions").Array() {
			values, _ := scalars(e.Get("values").Array())
			terms = append(terms, strings.TrimSpace(fmt.Sprintf("%s %s (%s)", e.Get("key"), strings.ToLower(e.Get("operator").String()), values)))
		}
		return text(name, strings.Join(terms, ","))
	}}
}

// counts are numbers beside each other, 0 where one is left out.
func counts(name string, pairs ...string) part {
	return part{name: name, of: func(o gjson.Result) *Field {
		var all []string
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, fmt.Sprintf("%d %s", o.Get(pairs[i]).Int(), pairs[i+1]))
		}
		return text(name, strings.Join(all, " | "))
	}}
}

// whole is a field with all below it.
func whole(name, path string) part {
	return part{name: name, of: func(o gjson.Result) *Field { return tree(name, o.Get(path)) }}
}

// template is a pod template: what its containers run, and where.
func template(path string) part {
	return part{name: "Pod template", of: func(o gjson.Result) *Field {
		t := o.Get(path)
		f := &Field{Name: "Pod template"}
		for _, p := range []part{selector("Labels", "metadata.labels"), at("Service account", "spec.serviceAccountName"), selector("Node selector", "spec.nodeSelector"), at("Priority class", "spec.priorityClassName")} {
			f.add(p, t)
		}
		for _, group := range []string{"initContainers", "containers"} {
			for _, c := range t.Get("spec." + group).Array() {
				one := Field{Name: strings.TrimSuffix(group, "s") + " " + c.Get("name").String()}
				for _, p := range []part{at("Image", "image"), at("Command", "command"), at("Args", "args"), ports("ports"), whole("Limits", "resources.limits"), whole("Requests", "resources.requests")} {
					one.add(p, c)
				}
				f.Below = append(f.Below, one)
			}
		}
		var volumes []string
		for _, v := range t.Get("spec.volumes").Array() {
			volumes = append(volumes, v.Get("name").String())
		}
		if len(volumes) > 0 {
			f.Below = append(f.Below, Field{Name: "Volumes", Text: strings.Join(volumes, ", ")})
		}
		return f
	}}
}

// ports are those of a container or a service.
func ports(path string) part {
	return part{name: "Ports", of: func(o gjson.Result) *Field {
		var all []string
		for _, p := range o.Get(path).Array() {
			number := p.Get("port").String() + p.Get("containerPort").String()
			one := strings.TrimSpace(p.Get("name").String() + " " + number + "/" + orTCP(p.Get("protocol").String()))
			if target := p.Get("targetPort"); target.Exists() {
				one += " to " + target.String()
			}
			if node := p.Get("nodePort"); node.Exists() {
				one += ", node port " + node.String()
			}
			all = append(all, one)
		}
		return text("Ports", strings.Join(all, "; "))
	}}
}

func orTCP(protocol string) string {
	if protocol == "" {
		return "TCP"
	}
	return protocol
}

// sizes are the names of data and how many bytes each has; never the values.
func sizes(path string, encoded bool) part {
	return part{name: "Data", of: func(o gjson.Result) *Field {
		f := &Field{Name: "Data"}
		data := o.Get(path)
		for _, k := range sortedKeys(data) {
			value := data.Get(gjson.Escape(k)).String()
			n := len(value)
			if encoded {
				raw, _ := base64.StdEncoding.DecodeString(value)
				n = len(raw)
			}
			f.Below = append(f.Below, Field{Name: k, Text: fmt.Sprintf("%d bytes", n)})
		}
		if len(f.Below) == 0 {
			return nil
		}
		return f
	}}
}

func text(name, value string) *Field {
	if value == "" {
		return nil
	}
	return &Field{Name: name, Text: value}
}

func sortedKeys(o gjson.Result) []string {
	var keys []string
	o.ForEach(func(k, _ gjson.Result) bool {
		keys = append(keys, k.String())
		return true
	})
	slices.Sort(keys)
	return keys
}

// add adds what a part is of an object, if it is anything.
func (f *Field) add(p part, o gjson.Result) {
	if p.of != nil {
		if below := p.of(o); below != nil {
			f.Below = append(f.Below, *below)
		}
		return
	}
	if below := tree(p.name, o.Get(p.path)); below != nil {
		f.Below = append(f.Below, *below)
	}
}

// summary are the useful fields of an object of a known kind; false of another.
func summary(o gjson.Result) ([]Field, bool) {
	group, _, has := strings.Cut(o.Get("apiVersion").String(), "/")
	if !has {
		group = ""
	}
	var f Field
	parts, known := summaries[strings.TrimSuffix(o.Get("kind").String()+"."+group, ".")]
	for _, p := range parts {
		f.add(p, o)
	}
	return f.Below, known
}
