package alerts

func queue() Dashboard {
	const named = `, component="queue", name=~"$queue"`
	stored := func(title, metric string) Panel {
		return graph(title, number, "max by (name) ("+metric+"{"+scope+named+"})", "{{name}}")
	}
	return Dashboard{
		UID: "deltaplane-queue", Title: "Deltaplane / Queue",
		Answers: "What waits, for how long, who works on it, and is the store healthy?",
		Pick:    []Pick{{"queue", "workqueue_depth", "name"}},
		Rows: []Row{
			{"What is held", []Panel{
				stored("Keys that wait", "workqueue_depth"),
				stored("Keys that are held", "deltaplane_queue_leases"),
				stored("Keys that wait for a due time", "deltaplane_queue_delayed"),
				stored("Dead keys", "deltaplane_queue_dead"),
				graph("Key held longest", seconds, "max by (name) (workqueue_longest_running_processor_seconds{"+scope+named+"})", "{{name}}"),
				graph("Streams", number, "sum by (kind) (deltaplane_queue_streams{"+scope+"})", "{{kind}}"),
			}},
			{"What moves", []Panel{
				rate("Keys added", "workqueue_adds_total", named, "name"),
				rate("Delayed and rate-limited adds", "workqueue_retries_total", named, "name"),
				graph("Settlements", perSecond, "sum by (name, result) (rate(deltaplane_queue_settlements_total{"+scope+named+"}[$__rate_interval]))", "{{name}} {{result}}"),
				quantiles("From add to lease", "workqueue_queue_duration_seconds", named, "name"),
				quantiles("From lease to settlement", "workqueue_work_duration_seconds", named, "name"),
				rate("Keys that became dead", "deltaplane_queue_buried_total", named, "name"),
			}},
			{"Leases", []Panel{
				rate("Leases that ended unsettled", "deltaplane_queue_leases_expired_total", named, "name"),
				rate("Leases of keys whose holder was lost", "deltaplane_queue_leases_redelivered_total", named, "name"),
				rate("Leases that could not be extended", "deltaplane_queue_extensions_lost_total", named, "name"),
				rate("Leases repaired", "deltaplane_queue_leases_repaired_total", named, "name").says("Keys found held without a lease, as after lost data."),
			}},
			{"Store", []Panel{
				rate("Transactions", "deltaplane_queue_turn_seconds_count", named, "name"),
				quantiles("Time of a transaction", "deltaplane_queue_turn_seconds", named),
				graph("Operations in a transaction", number, "sum by (name) (rate(deltaplane_queue_turn_operations_sum{"+scope+named+"}[$__rate_interval])) / sum by (name) (rate(deltaplane_queue_turn_operations_count{"+scope+named+"}[$__rate_interval]) > 0)", "{{name}}"),
				rate("Transactions that failed", "deltaplane_queue_turn_errors_total", named, "reason").quiet("none has failed"),
				largest("Refuses adds", yesNo, "deltaplane_queue_store_refuses_adds", "", "reason"),
				rate("Calls refused since too many wait", "deltaplane_queue_shed_total", named, "name"),
				graph("Steps of the clock", number, "sum(increase(deltaplane_queue_clock_steps_total{"+scope+"}[$__rate_interval]))", "steps"),
				rate("Queues deleted since nobody used them", "deltaplane_queue_unused_deleted_total", "", "instance"),
			}},
			processes("queue"),
		},
	}
}
