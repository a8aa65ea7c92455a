package table

import "k8s.io/apimachinery/pkg/runtime/schema"

// builtin are the layouts of built-in resources, without their version: with the columns that API
// servers of the last few releases have.
var builtin = map[schema.GroupResource]layout{
	{Resource: "pods"}:       {[]string{"Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"}, podRow, []string{"IP", "Node", "Nominated Node", "Readiness Gates"}},
	{Resource: "services"}:   {[]string{"Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector"}, cells(serviceCells), []string{"Selector"}},
	{Resource: "namespaces"}: {[]string{"Name", "Status", "Age"}, cells(namespaceCells), nil},
	{Resource: "configmaps"}: {[]string{"Name", "Data", "Age"}, cells(configMapCells), nil},
	{Resource: "secrets"}:    {[]string{"Name", "Type", "Data", "Age"}, cells(secretCells), nil},
	{Resource: "events"}:     {eventColumns, cells(eventCells), []string{"Subobject", "Source", "First Seen", "Count", "Name"}},
	{Resource: "nodes"}: {
		[]string{"Name", "Status", "Roles", "Age", "Version", "Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"},
		cells(nodeCells),
		[]string{"Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"},
	},
	{Resource: "persistentvolumes"}: {[]string{
		"Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass", "VolumeAttributesClass", "Reason", "Age", "VolumeMode",
	}, cells(volumeCells), []string{"VolumeMode"}},
	{Resource: "persistentvolumeclaims"}: {[]string{
		"Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass", "Age", "VolumeMode",
	}, cells(claimCells), []string{"VolumeMode"}},
	{Group: "apps", Resource: "deployments"}:  {[]string{"Name", "Ready", "Up-to-date", "Available", "Age", "Containers", "Images", "Selector"}, cells(deploymentCells), pods},
	{Group: "apps", Resource: "replicasets"}:  {[]string{"Name", "Desired", "Current", "Ready", "Age", "Containers", "Images", "Selector"}, cells(replicaSetCells), pods},
	{Group: "apps", Resource: "statefulsets"}: {[]string{"Name", "Ready", "Age", "Containers", "Images"}, cells(statefulSetCells), pods},
	{Group: "apps", Resource: "daemonsets"}: {[]string{
		"Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age", "Containers", "Images", "Selector",
	}, cells(daemonSetCells), pods},
	{Group: "coordination.k8s.io", Resource: "leases"}: {[]string{"Name", "Holder", "Age"}, cells(leaseCells), nil},
	{Group: "batch", Resource: "jobs"}:                 {[]string{"Name", "Status", "Completions", "Duration", "Age", "Containers", "Images", "Selector"}, cells(jobCells), pods},
	{Group: "batch", Resource: "cronjobs"}: {[]string{
		"Name", "Schedule", "Timezone", "Suspend", "Active", "Last Schedule", "Age", "Containers", "Images", "Selector",
	}, cells(cronJobCells), pods},
	{Group: "networking.k8s.io", Resource: "ingresses"}:                   {[]string{"Name", "Class", "Hosts", "Address", "Ports", "Age"}, cells(ingressCells), nil},
	{Group: "policy", Resource: "poddisruptionbudgets"}:                   {[]string{"Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"}, cells(disruptionBudgetCells), nil},
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}:        {bindingColumns, cells(bindingCells), []string{"Users", "Groups", "ServiceAccounts"}},
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}: {bindingColumns, cells(bindingCells), []string{"Users", "Groups", "ServiceAccounts"}},
	{Group: "scheduling.k8s.io", Resource: "priorityclasses"}:             {[]string{"Name", "Value", "Global-Default", "Age", "PreemptionPolicy"}, cells(priorityClassCells), nil},
	{Group: "storage.k8s.io", Resource: "storageclasses"}: {[]string{
		"Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age",
	}, cells(storageClassCells), nil},
}

// pods are columns of what a workload makes, which only wide tables have.
var pods = []string{"Containers", "Images", "Selector"}

var (
	eventColumns   = []string{"Last Seen", "Type", "Reason", "Object", "Subobject", "Source", "Message", "First Seen", "Count", "Name"}
	bindingColumns = []string{"Name", "Role", "Age", "Users", "Groups", "ServiceAccounts"}
)
