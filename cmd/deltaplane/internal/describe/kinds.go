package describe

// summaries are the useful fields of kinds, in the order in which kubectl shows them.
var summaries = map[string][]part{
	"Deployment.apps": {
		selector("Selector", "spec.selector"),
		counts("Replicas", "spec.replicas", "desired", "status.updatedReplicas", "updated", "status.replicas", "total", "status.availableReplicas", "available", "status.unavailableReplicas", "unavailable"),
		at("Strategy", "spec.strategy.type"), whole("Rolling update", "spec.strategy.rollingUpdate"), at("Min ready seconds", "spec.minReadySeconds"),
		at("Paused", "spec.paused"), at("Observed generation", "status.observedGeneration"), template("spec.template"),
	},
	"ReplicaSet.apps": {
		selector("Selector", "spec.selector"),
		counts("Replicas", "status.replicas", "current", "spec.replicas", "desired", "status.readyReplicas", "ready", "status.availableReplicas", "available"),
		template("spec.template"),
	},
	"ReplicationController": {
		selector("Selector", "spec.selector"),
		counts("Replicas", "status.replicas", "current", "spec.replicas", "desired", "status.readyReplicas", "ready", "status.availableReplicas", "available"),
		template("spec.template"),
	},
	"StatefulSet.apps": {
		selector("Selector", "spec.selector"), at("Service name", "spec.serviceName"),
		counts("Replicas", "spec.replicas", "desired", "status.replicas", "total", "status.readyReplicas", "ready", "status.updatedReplicas", "updated"),
		at("Update strategy", "spec.updateStrategy.type"), at("Partition", "spec.updateStrategy.rollingUpdate.partition"),
		at("Pod management", "spec.podManagementPolicy"), template("spec.template"), at("Volume claims", "spec.volumeClaimTemplates.#.metadata.name"),
	},
	"DaemonSet.apps": {
		selector("Selector", "spec.selector"), selector("Node selector", "spec.template.spec.nodeSelector"),
		counts("Nodes", "status.desiredNumberScheduled", "desired", "status.currentNumberScheduled", "current", "status.updatedNumberScheduled", "up to date", "status.numberReady", "ready", "status.numberMisscheduled", "misscheduled"),
		at("Update strategy", "spec.updateStrategy.type"), template("spec.template"),
	},
	"Job.batch": {
		selector("Selector", "spec.selector"), at("Parallelism", "spec.parallelism"), at("Completions", "spec.completions"), at("Completion mode", "spec.completionMode"),
		at("Suspend", "spec.suspend"), at("Backoff limit", "spec.backoffLimit"), at("Active deadline seconds", "spec.activeDeadlineSeconds"),
		at("TTL seconds after finished", "spec.ttlSecondsAfterFinished"), at("Managed by", "spec.managedBy"),
		at("Start time", "status.startTime"), at("Completed at", "status.completionTime"),
		counts("Pods", "status.active", "active", "status.ready", "ready", "status.succeeded", "succeeded", "status.failed", "failed"),
		at("Completed indexes", "status.completedIndexes"), at("Failed indexes", "status.failedIndexes"), template("spec.template"),
	},
	"CronJob.batch": {
		at("Schedule", "spec.schedule"), at("Time zone", "spec.timeZone"), at("Concurrency policy", "spec.concurrencyPolicy"), at("Suspend", "spec.suspend"),
		at("Starting deadline seconds", "spec.startingDeadlineSeconds"), at("Successful jobs kept", "spec.successfulJobsHistoryLimit"), at("Failed jobs kept", "spec.failedJobsHistoryLimit"),
		at("Last schedule", "status.lastScheduleTime"), at("Last success", "status.lastSuccessfulTime"), at("Active jobs", "status.active.#.name"),
		template("spec.jobTemplate.spec.template"),
	},
	"Service": {
		selector("Selector", "spec.selector"), at("Type", "spec.type"), at("IPs", "spec.clusterIPs"), at("External name", "spec.externalName"), at("External IPs", "spec.externalIPs"),
		ports("spec.ports"), whole("Load balancer", "status.loadBalancer"), at("Session affinity", "spec.sessionAffinity"), at("External traffic", "spec.externalTrafficPolicy"),
	},
	"Ingress.networking.k8s.io": {
		at("Class", "spec.ingressClassName"), whole("Default backend", "spec.defaultBackend"), whole("Load balancer", "status.loadBalancer"), whole("TLS", "spec.tls"), whole("Rules", "spec.rules"),
	},
	"ConfigMap": {whole("Data", "data"), sizes("binaryData", true), at("Immutable", "immutable")},
	"Secret":    {at("Type", "type"), sizes("data", true), at("Immutable", "immutable")},
	"Namespace": {at("Status", "status.phase"), at("Finalizers", "spec.finalizers")},
	"Node": {
		at("Roles", "metadata.labels.kubernetes\\.io/role"), whole("Taints", "spec.taints"), at("Unschedulable", "spec.unschedulable"), whole("Addresses", "status.addresses"),
		whole("Capacity", "status.capacity"), whole("Allocatable", "status.allocatable"), whole("System", "status.nodeInfo"),
	},
	"Pod": {
		at("Node", "spec.nodeName"), at("Status", "status.phase"), at("Reason", "status.reason"), at("IPs", "status.podIPs.#.ip"), at("Start time", "status.startTime"), template("@this"),
	},
	"PersistentVolumeClaim": {
		at("Storage class", "spec.storageClassName"), at("Status", "status.phase"), at("Volume", "spec.volumeName"), at("Capacity", "status.capacity.storage"),
		at("Requested", "spec.resources.requests.storage"), at("Access modes", "spec.accessModes"), at("Volume mode", "spec.volumeMode"),
	},
	"PersistentVolume": {
		at("Storage class", "spec.storageClassName"), at("Status", "status.phase"), at("Claim", "spec.claimRef.name"), at("Claim namespace", "spec.claimRef.namespace"),
		at("Reclaim policy", "spec.persistentVolumeReclaimPolicy"), at("Access modes", "spec.accessModes"), at("Capacity", "spec.capacity.storage"), whole("Source", "spec.csi"),
	},
	"HorizontalPodAutoscaler.autoscaling": {
		at("Scales", "spec.scaleTargetRef.kind"), at("Named", "spec.scaleTargetRef.name"), at("Min replicas", "spec.minReplicas"), at("Max replicas", "spec.maxReplicas"),
		counts("Replicas", "status.currentReplicas", "current", "status.desiredReplicas", "desired"), whole("Metrics", "spec.metrics"),
	},
	"PodDisruptionBudget.policy": {
		selector("Selector", "spec.selector"), at("Min available", "spec.minAvailable"), at("Max unavailable", "spec.maxUnavailable"),
		counts("Pods", "status.disruptionsAllowed", "may be disrupted", "status.currentHealthy", "healthy", "status.desiredHealthy", "wanted", "status.expectedPods", "in all"),
	},
	"Lease.coordination.k8s.io": {
		at("Holder", "spec.holderIdentity"), at("Acquired", "spec.acquireTime"), at("Renewed", "spec.renewTime"), at("Seconds", "spec.leaseDurationSeconds"), at("Transitions", "spec.leaseTransitions"),
	},
	"ServiceAccount": {at("Secrets", "secrets.#.name"), at("Image pull secrets", "imagePullSecrets.#.name")},
}
