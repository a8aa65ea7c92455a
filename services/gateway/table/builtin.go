package table

import "github.com/deltaplane/deltaplane/services/gateway/request"

// builtin are the layouts of built-in resources, without their version: with the columns that API
// servers of the last few releases have.
var builtin = map[request.Resource]layout{
	{Name: "pods"}:       {[]string{"Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"}, podRow},
	{Name: "services"}:   {[]string{"Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector"}, cells(serviceCells)},
	{Name: "namespaces"}: {[]string{"Name", "Status", "Age"}, cells(namespaceCells)},
	{Name: "configmaps"}: {[]string{"Name", "Data", "Age"}, cells(configMapCells)},
	{Name: "secrets"}:    {[]string{"Name", "Type", "Data", "Age"}, cells(secretCells)},
	{Name: "events"}:     {eventColumns, cells(eventCells)},
	{Name: "nodes"}: {
		[]string{"Name", "Status", "Roles", "Age", "Version", "Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"}, cells(nodeCells),
	},
	{Name: "persistentvolumes"}: {[]string{
		"Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass", "VolumeAttributesClass", "Reason", "Age", "VolumeMode",
	}, cells(volumeCells)},
	{Name: "persistentvolumeclaims"}: {[]string{
		"Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass", "Age", "VolumeMode",
	}, cells(claimCells)},
	{Group: "apps", Name: "deployments"}:  {[]string{"Name", "Ready", "Up-to-date", "Available", "Age", "Containers", "Images", "Selector"}, cells(deploymentCells)},
	{Group: "apps", Name: "replicasets"}:  {[]string{"Name", "Desired", "Current", "Ready", "Age", "Containers", "Images", "Selector"}, cells(replicaSetCells)},
	{Group: "apps", Name: "statefulsets"}: {[]string{"Name", "Ready", "Age", "Containers", "Images"}, cells(statefulSetCells)},
	{Group: "apps", Name: "daemonsets"}: {[]string{
		"Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age", "Containers", "Images", "Selector",
	}, cells(daemonSetCells)},
	{Group: "batch", Name: "jobs"}: {[]string{"Name", "Status", "Completions", "Duration", "Age", "Containers", "Images", "Selector"}, cells(jobCells)},
	{Group: "batch", Name: "cronjobs"}: {[]string{
		"Name", "Schedule", "Timezone", "Suspend", "Active", "Last Schedule", "Age", "Containers", "Images", "Selector",
	}, cells(cronJobCells)},
	{Group: "networking.k8s.io", Name: "ingresses"}:                   {[]string{"Name", "Class", "Hosts", "Address", "Ports", "Age"}, cells(ingressCells)},
	{Group: "policy", Name: "poddisruptionbudgets"}:                   {[]string{"Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"}, cells(disruptionBudgetCells)},
	{Group: "rbac.authorization.k8s.io", Name: "rolebindings"}:        {bindingColumns, cells(bindingCells)},
	{Group: "rbac.authorization.k8s.io", Name: "clusterrolebindings"}: {bindingColumns, cells(bindingCells)},
	{Group: "scheduling.k8s.io", Name: "priorityclasses"}:             {[]string{"Name", "Value", "Global-Default", "Age", "PreemptionPolicy"}, cells(priorityClassCells)},
	{Group: "storage.k8s.io", Name: "storageclasses"}: {[]string{
		"Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age",
	}, cells(storageClassCells)},
}

var (
	eventColumns   = []string{"Last Seen", "Type", "Reason", "Object", "Subobject", "Source", "Message", "First Seen", "Count", "Name"}
	bindingColumns = []string{"Name", "Role", "Age", "Users", "Groups", "ServiceAccounts"}
)
