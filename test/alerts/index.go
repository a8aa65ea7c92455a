package alerts

func index() Dashboard {
	const collected = `, collection=~"$collection"`
	perCollection := func(title, unit, metric string) Panel {
		return graph(title, unit, "max by (collection) ("+metric+"{"+scope+collected+"})", "{{collection}}")
	}
	return Dashboard{
		UID: "deltaplane-index", Title: "Deltaplane / Index",
		Answers: "Who reads what, how fast is it answered, what does the index hold, and does it fit?",
		Pick:    []Pick{{"collection", "deltaplane_indexer_objects", "collection"}},
		Rows: []Row{
			{"Calls", []Panel{
				rate("Calls by method", "grpc_server_started_total", `, component="indexer"`, "grpc_method"),
				quantiles("Time of calls", "grpc_server_handling_seconds", `, component="indexer", grpc_type="unary"`, "grpc_method"),
				graph("Calls by code", perSecond, "sum by (grpc_code) (rate(grpc_server_handled_total{"+scope+`, component="indexer"}[$__rate_interval]))`, "{{grpc_code}}"),
				rate("Calls on Query streams", "deltaplane_indexer_query_calls_total", "", "call"),
				rate("Refused by a limit of connections", "deltaplane_rpc_refused_total", `, component="indexer"`, "reason"),
				rate("Refused by a limit of reads", "deltaplane_indexer_limited_total", "", "limit").quiet("nothing has been refused"),
				largest("Memory that requests hold", bytes, "deltaplane_indexer_request_bytes", "", "instance"),
				rate("Page tokens", "deltaplane_indexer_page_tokens_total", "", "result").quiet("nobody reads in pages"),
				largest("Snapshots kept for page tokens", number, "deltaplane_indexer_pinned_snapshots", "", "instance"),
			}},
			{"Watches", []Panel{
				graph("Open watches", number, "sum by (collection) (deltaplane_indexer_watchers{"+scope+collected+"})", "{{collection}}"),
				largest("Slowest watch", seconds, "deltaplane_indexer_watch_lag_seconds", collected, "collection").says("Age of the oldest change that an open watch has not taken."),
				graph("Watches that have missed changes", number, "sum by (collection) (deltaplane_indexer_watchers_behind{"+scope+collected+"})", "{{collection}}"),
				rate("Watches that fell behind", "deltaplane_indexer_watch_overruns_total", "", "outcome"),
				graph("Initial states", number, "sum by (stage) (deltaplane_indexer_watch_initial_states{"+scope+"})", "{{stage}}"),
			}},
			{"What is held", []Panel{
				perCollection("Objects", number, "deltaplane_indexer_objects"),
				{Title: "Memory of collections", Unit: bytes, Show: []Query{
					{"sum by (instance) (deltaplane_indexer_memory_bytes{" + scope + "})", "{{instance}}"},
					{"max by (instance) (deltaplane_indexer_memory_budget_bytes{" + scope + "})", "{{instance}} budget"},
				}},
				perCollection("Memory by collection", bytes, "deltaplane_indexer_memory_bytes"),
				graph("Payloads by tier", bytes, "sum by (tier, instance) (deltaplane_indexer_stored_bytes{"+scope+collected+"})", "{{tier}} {{instance}}"),
				perCollection("Compression", number, "deltaplane_indexer_compression_ratio").quiet("nothing is compressed"),
				perCollection("Does not fit", yesNo, "deltaplane_indexer_memory_refused"),
				graph("Objects without a place in an index", number, "max by (collection, index) (deltaplane_indexer_index_unindexed_objects{"+scope+collected+"})", "{{collection}} {{index}}"),
				perCollection("Quarantined keys", number, "deltaplane_indexer_quarantined_keys"),
				graph("Served by", number, "sum by (collection) (deltaplane_indexer_synced{"+scope+collected+"})", "{{collection}}").says("Replicas that answer reads of the collection."),
			}},
			{"Log and checkpoints", []Panel{
				perCollection("Age of checkpoints", seconds, "deltaplane_indexer_checkpoint_age_seconds"),
				quantiles("Time to write a checkpoint", "deltaplane_indexer_checkpoint_duration_seconds", "").quiet("none was written lately: a collection has one in minutes"),
				perCollection("Cannot be written", yesNo, "deltaplane_indexer_checkpoint_failing"),
				rate("Starts from a checkpoint", "deltaplane_indexer_warm_starts_total", "", "outcome"),
				rate("Records that cannot be read", "deltaplane_indexer_unreadable_records_total", collected, "collection").quiet("there are none"),
				rate("Records of a later build", "deltaplane_indexer_unknown_records_total", collected, "part").quiet("there are none"),
				rate("Logs read again from the start", "deltaplane_indexer_log_rereads_total", collected, "collection").quiet("there are none"),
				rate("Stored payloads that cannot be decoded", "deltaplane_indexer_decode_errors_total", collected, "collection"),
			}},
			{"Gateway", []Panel{
				graph("Requests, by whom they are answered", perSecond, "sum by (verb, by) (rate(deltaplane_gateway_requests_total{"+scope+"}[$__rate_interval]))", "{{verb}} {{by}}"),
				graph("Why the index did not answer", perSecond, "sum by (reason) (rate(deltaplane_gateway_requests_total{"+scope+`, by!="index"}[$__rate_interval]))`, "{{reason}}"),
				rate("Answers by code", "apiserver_request_total", `, component="gateway"`, "code"),
				quantiles("Time of requests", "apiserver_request_duration_seconds", `, component="gateway", verb!~"WATCH|CONNECT"`, "verb"),
				graph("Watches from the index", number, "sum by (instance) (deltaplane_gateway_watches{"+scope+"})", "{{instance}}"),
			}},
			processes("indexer"),
		},
	}
}
