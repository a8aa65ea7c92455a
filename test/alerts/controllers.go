package alerts

func controllers() Dashboard {
	const own, named = `, controller=~"$controller"`, `, component="controllers", name=~"$controller"`
	return Dashboard{
		UID: "deltaplane-controllers", Title: "Deltaplane / Controllers",
		Answers: "Do controllers keep up, do their reconciles succeed, and what do they do to Jobs, nodes and pods?",
		Pick:    []Pick{{"controller", "controller_runtime_max_concurrent_reconciles", "controller"}},
		Rows: []Row{
			{"Reconciles", []Panel{
				graph("Reconciles", perSecond, "sum by (controller, result) (rate(controller_runtime_reconcile_total{"+scope+own+"}[$__rate_interval]))", "{{controller}} {{result}}"),
				rate("Reconciles that failed", "controller_runtime_reconcile_errors_total", own, "controller"),
				quantiles("Time of a reconcile", "controller_runtime_reconcile_time_seconds", own, "controller"),
				quantiles("Key ready until it is reconciled", "workqueue_queue_duration_seconds", named, "name"),
				{Title: "Busy workers", Unit: number, Show: []Query{
					{"sum by (controller) (controller_runtime_active_workers{" + scope + own + "})", "{{controller}}"},
					{"sum by (controller) (controller_runtime_max_concurrent_reconciles{" + scope + own + "})", "{{controller}} at most"},
				}},
				rate("Leases lost", "deltaplane_controllers_leases_lost_total", own, "controller"),
				graph("Rounds over every key", perSecond, "sum by (controller, reason, result) (rate(deltaplane_controllers_sweeps_total{"+scope+own+"}[$__rate_interval]))", "{{controller}} {{reason}} {{result}}"),
				rate("Panics", "controller_runtime_reconcile_panics_total", own, "controller"),
			}},
			{"Jobs", []Panel{
				graph("Syncs", perSecond, "sum by (result, action) (rate(job_controller_job_syncs_total{"+scope+"}[$__rate_interval]))", "{{action}} {{result}}"),
				quantiles("Time of a sync", "job_controller_job_sync_duration_seconds", "", "action"),
				graph("Pods created", perSecond, "sum by (reason, status) (rate(job_controller_job_pods_creation_total{"+scope+"}[$__rate_interval]))", "{{reason}} {{status}}"),
				rate("Pods that ended", "job_controller_job_pods_finished_total", "", "result"),
				graph("Jobs that finished", perSecond, "sum by (result, reason) (rate(job_controller_jobs_finished_total{"+scope+"}[$__rate_interval]))", "{{result}} {{reason}}"),
				rate("Pods with the tracking finalizer", "job_controller_terminated_pods_tracking_finalizer_total", "", "event").says("What is added is deleted soon after."),
			}},
			{"Nodes and pods", []Panel{
				graph("Ready nodes", percent, "min by (zone) (node_collector_zone_health{"+scope+"})", "{{zone}}"),
				largest("Nodes", number, "node_collector_zone_size", "", "zone"),
				largest("Nodes that are not ready", number, "node_collector_unhealthy_nodes_in_zone", "", "zone"),
				rate("Nodes tainted", "node_collector_evictions_total", "", "zone").quiet("no node has been tainted"),
				quantiles("A round over all nodes", "node_collector_update_all_nodes_health_duration_seconds", ""),
				graph("Pods evicted", perSecond, "sum(rate(taint_eviction_controller_pod_deletions_total{"+scope+"}[$__rate_interval]))", "evicted"),
				quantiles("Evicted after its time", "taint_eviction_controller_pod_deletion_duration_seconds", "").says("How long after the end of its tolerated time a pod was deleted.").quiet("no pod has been evicted"),
				rate("Pods deleted by garbage collection", "pod_gc_collector_force_delete_pods_total", "", "reason").quiet("none has been deleted"),
				rate("Those that failed", "pod_gc_collector_force_delete_pod_errors_total", "", "reason").quiet("none has failed"),
			}},
			processes("controllers"),
		},
	}
}
