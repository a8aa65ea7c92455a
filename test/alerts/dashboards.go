package alerts

import (
	"encoding/json"
	"strings"
)

// A Dashboard is a page of Grafana: rows of panels.
type Dashboard struct {
	UID, Title string
	// Answers is the question that the page answers.
	Answers string
	// Pick are labels that the page is narrowed by, beside the namespace.
	Pick []Pick
	Rows []Row
}

// A Pick is a variable of the page, with the values of a label of a metric.
type Pick struct{ Name, Metric, Label string }

// A Row is panels under a title.
type Row struct {
	Title  string
	Panels []Panel
}

// A Panel is a graph of one or several expressions.
type Panel struct {
	Title, Help string
	// Unit is one of Grafana's.
	Unit string
	// Stat shows the last value alone.
	Stat bool
	Show []Query
	// Quiet is why the panel may have no data while all is well; empty for one that always has.
	Quiet string
}

// A Query is an expression and what its lines are called.
type Query struct{ Expr, Legend string }

// Units that panels have.
const (
	seconds   = "s"
	bytes     = "bytes"
	perSecond = "ops"
	share     = "percentunit"
	percent   = "percent"
	number    = "short"
	yesNo     = "bool"
)

// scope narrows what a page shows to Deltaplane and to the namespaces that were picked.
const scope = `job="deltaplane", namespace=~"$namespace"`

func one(expr, legend string) []Query { return []Query{{expr, legend}} }

// graph is a panel with one expression.
func graph(title, unit, expr, legend string) Panel {
	return Panel{Title: title, Unit: unit, Show: one(expr, legend)}
}

// stat is a panel with one number.
func stat(title, unit, expr string) Panel {
	return Panel{Title: title, Unit: unit, Stat: true, Show: one(expr, "")}
}

// says adds what a panel shows.
func (p Panel) says(help string) Panel {
	p.Help = help
	return p
}

// quiet says why a panel may have no data.
func (p Panel) quiet(why string) Panel {
	p.Quiet = why
	return p
}

// quantiles is a panel of a histogram: half, and 99 of 100.
func quantiles(title, metric, match string, by ...string) Panel {
	group, legend := strings.Join(append([]string{"le"}, by...), ", "), ""
	if len(by) > 0 {
		legend = "{{" + strings.Join(by, "}} {{") + "}} "
	}
	expr := func(q string) string {
		return "histogram_quantile(" + q + ", sum by (" + group + ") (rate(" + metric + "_bucket{" + scope + match + "}[$__rate_interval])))"
	}
	return Panel{Title: title, Unit: seconds, Show: []Query{{expr("0.5"), legend + "p50"}, {expr("0.99"), legend + "p99"}}}
}

// rate is the sum of a counter's rates.
func rate(title, metric, match, by string) Panel {
	return graph(title, perSecond, "sum by ("+by+") (rate("+metric+"{"+scope+match+"}[$__rate_interval]))", "{{"+by+"}}")
}

// largest is the largest of a gauge.
func largest(title, unit, metric, match, by string) Panel {
	return graph(title, unit, "max by ("+by+") ("+metric+"{"+scope+match+"})", "{{"+by+"}}")
}

// processes are the memory and the time of a part.
func processes(component string) Row {
	match := `, component="` + component + `"`
	return Row{"Processes", []Panel{
		graph("CPU", number, "sum by (instance) (rate(process_cpu_seconds_total{"+scope+match+"}[$__rate_interval]))", "{{instance}}").says("Cores."),
		graph("Resident memory", bytes, "sum by (instance) (process_resident_memory_bytes{"+scope+match+"})", "{{instance}}"),
		graph("Goroutines", number, "sum by (instance) (go_goroutines{"+scope+match+"})", "{{instance}}"),
	}}
}

// JSON is the dashboard as Grafana takes it.
func (d Dashboard) JSON() ([]byte, error) {
	datasource := object{"type": "prometheus", "uid": "${datasource}"}
	panels, id, y := []object{}, 0, 0
	add := func(p object, x, y, w, h int) {
		id++
		p["id"], p["gridPos"] = id, object{"x": x, "y": y, "w": w, "h": h}
		panels = append(panels, p)
	}
	for _, row := range d.Rows {
		add(object{"type": "row", "title": row.Title, "collapsed": false, "panels": []object{}}, 0, y, 24, 1)
		y++
		x, height := 0, 0
		for _, p := range row.Panels {
			w, h := 8, 8
			if p.Stat {
				w, h = 4, 4
			}
			if x+w > 24 {
				x, y, height = 0, y+height, 0
			}
			add(p.json(datasource), x, y, w, h)
			x, height = x+w, max(height, h)
		}
		y += height
	}
	variables := []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
		variable(Pick{"namespace", "up", "namespace"}, `job="deltaplane"`, datasource),
	}
	for _, p := range d.Pick {
		variables = append(variables, variable(p, scope, datasource))
	}
	return json.MarshalIndent(object{
		"uid": d.UID, "title": d.Title, "description": d.Answers, "tags": []string{"deltaplane"}, "schemaVersion": 39, "editable": false,
		"refresh": "30s", "time": object{"from": "now-1h", "to": "now"}, "timezone": "browser", "graphTooltip": 1,
		"links":      []object{{"type": "dashboards", "title": "Deltaplane", "tags": []string{"deltaplane"}, "keepTime": true, "includeVars": true}},
		"templating": object{"list": variables}, "panels": panels,
	}, "", "  ")
}

type object map[string]any

func variable(p Pick, match string, datasource object) object {
	return object{
		"name": p.Name, "label": p.Name, "type": "query", "datasource": datasource, "refresh": 2, "multi": true, "includeAll": true, "allValue": ".*",
		"current": object{"text": "All", "value": "$__all"}, "query": "label_values(" + p.Metric + "{" + match + "}, " + p.Label + ")",
	}
}

func (p Panel) json(datasource object) object {
	targets := []object{}
	for i, q := range p.Show {
		targets = append(targets, object{"refId": string(rune('A' + i)), "expr": q.Expr, "legendFormat": q.Legend, "datasource": datasource, "instant": p.Stat, "range": !p.Stat})
	}
	help := p.Help
	if p.Quiet != "" {
		if help != "" {
			help += " "
		}
		help += "No data: " + p.Quiet + "."
	}
	out := object{
		"type": "timeseries", "title": p.Title, "description": help, "datasource": datasource, "targets": targets,
		"fieldConfig": object{"defaults": object{"unit": p.Unit, "min": 0, "custom": object{"fillOpacity": 10, "showPoints": "never"}}, "overrides": []object{}},
		"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"}},
	}
	if p.Stat {
		out["type"] = "stat"
		out["fieldConfig"] = object{"defaults": object{"unit": p.Unit}, "overrides": []object{}}
		out["options"] = object{"reduceOptions": object{"calcs": []string{"lastNotNull"}}, "colorMode": "value", "graphMode": "none"}
	}
	return out
}
