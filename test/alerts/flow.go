package alerts

// Dashboards are the pages of deploy/monitoring/dashboards.
func Dashboards() []Dashboard { return []Dashboard{flow(), index(), queue(), controllers()} }

func flow() Dashboard {
	const named, collected = `, name=~"$collection"`, `, collection=~"$collection"`
	return Dashboard{
		UID: "deltaplane-flow", Title: "Deltaplane / Flow",
		Answers: "How current is what readers see, and which step between API server and query takes the time?",
		Pick:    []Pick{{"collection", "deltaplane_indexer_objects", "collection"}},
		Rows: []Row{
			{"At a glance", []Panel{
				stat("Alerts that fire", number, `count(ALERTS{alertname=~"Deltaplane.+", alertstate="firing"}) or vector(0)`),
				stat("Replicas that answer", share, "sum(up{"+scope+"}) / count(up{"+scope+"})"),
				stat("Collections that are served", number, "sum(max by (collection) (deltaplane_indexer_synced{"+scope+"}))"),
				stat("Oldest state", seconds, "max(min by (collection) (deltaplane_indexer_silence_seconds{"+scope+"}))").says("Since the reflector of a collection was last heard by its most current indexer. It says every 2 s that it is current."),
				stat("Changes seen within 1 s", share, `sum(rate(deltaplane_indexer_stored_to_visible_seconds_bucket{`+scope+`, le=~"1|1.0"}[$__rate_interval])) / sum(rate(deltaplane_indexer_stored_to_visible_seconds_count{`+scope+`}[$__rate_interval]))`),
				stat("Keys that wait", number, "sum(max by (name) (workqueue_depth{"+scope+"}))"),
			}},
			{"API server to reflector", []Panel{
				graph("Leaders of each collection", number, "sum by (name) (deltaplane_reflector_leader{"+scope+named+"})", "{{name}}").says("1 is as it should be."),
				graph("Source was last heard", seconds, "min by (name) (deltaplane_reflector_source_silence_seconds{"+scope+named+"})", "{{name}}").says("A quiet resource is heard with each bookmark, about once a minute."),
				{Title: "Lists and watches", Unit: perSecond, Show: []Query{
					{"sum(rate(reflector_lists_total{" + scope + named + "}[$__rate_interval]))", "lists"},
					{"sum(rate(reflector_watches_total{" + scope + named + "}[$__rate_interval]))", "watches"},
				}},
				graph("Ends of watches", perSecond, "sum by (reason) (rate(deltaplane_reflector_watch_ends_total{"+scope+named+"}[$__rate_interval]))", "{{reason}}").quiet("no watch has ended since the start"),
				graph("Failures by stage", perSecond, "sum by (name, stage) (rate(deltaplane_reflector_errors_total{"+scope+named+"}[$__rate_interval]))", "{{name}} {{stage}}").quiet("nothing has failed"),
				graph("Fails now", yesNo, "max by (name, reason) (deltaplane_reflector_failing{"+scope+named+"})", "{{name}} {{reason}}").quiet("nothing fails"),
			}},
			{"Reflector to log", []Panel{
				rate("Records published", "deltaplane_reflector_published_total", named, "kind"),
				quantiles("Change read until the log has it", "deltaplane_reflector_observed_to_acknowledged_seconds", named),
				largest("Change that waits for the log", seconds, "deltaplane_reflector_lag_seconds", named, "name"),
				graph("Changes that wait for the log", number, "sum by (name) (deltaplane_reflector_pending{"+scope+named+"})", "{{name}}"),
				{Title: "Folded or left to a list", Unit: perSecond, Help: "What a slow log makes of changes.", Show: []Query{
					{"sum(rate(deltaplane_reflector_coalesced_total{" + scope + named + "}[$__rate_interval]))", "folded into a later change"},
					{"sum(rate(deltaplane_reflector_dropped_total{" + scope + named + "}[$__rate_interval]))", "left to a list"},
				}},
				graph("Quarantined objects", number, "sum by (name) (deltaplane_reflector_quarantined{"+scope+named+"})", "{{name}}"),
			}},
			{"Log to query", []Panel{
				quantiles("Stored until a query sees it", "deltaplane_indexer_stored_to_visible_seconds", "", "instance"),
				quantiles("Published until a query sees it", "deltaplane_indexer_publish_to_visible_seconds", "", "instance"),
				graph("Records behind the log", number, "max by (collection, instance) (deltaplane_indexer_lag_records{"+scope+collected+"})", "{{collection}} {{instance}}"),
				largest("Reflector was last heard", seconds, "deltaplane_indexer_silence_seconds", collected, "collection"),
				rate("Changes applied", "deltaplane_indexer_deltas_total", collected, "result"),
				largest("Stands still before a hole", yesNo, "deltaplane_indexer_lagging", collected, "collection"),
			}},
			processes("reflector"),
		},
	}
}
