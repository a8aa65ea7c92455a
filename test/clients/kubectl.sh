#!/usr/bin/env bash
# What people do with kubectl, through a gateway.  KUBECONFIG=gateway.kubeconfig kubectl.sh KUBECTL NAMESPACE
set -euo pipefail
kubectl=$1 ns=$2
k() { "$kubectl" -n "$ns" "$@"; }
# It reads to the end: kubectl fails on a pipe that is closed.
has() { grep -- "$1" >/dev/null || { echo "kubectl: no $1 in the output" >&2; exit 1; }; }

k create configmap a --from-literal=x=1
k get configmap a -o yaml | has 'x: "1"'
k get configmap a -o yaml --show-managed-fields | has managedFields
k get configmaps | has '^a '
k get configmaps -o name | has configmap/a
k describe configmap a | has 'Name: *a'
k patch configmap a --type merge -p '{"data":{"x":"2"}}'
k get configmap a -o 'jsonpath={.data.x}' | has 2
k apply -f - <<-END
	apiVersion: v1
	kind: ConfigMap
	metadata: {name: b, labels: {app: web}}
	data: {v: "1"}
END
k get configmaps -l app=web -o name | has configmap/b
k apply --server-side --force-conflicts -f - <<-END
	apiVersion: v1
	kind: ConfigMap
	metadata: {name: b}
	data: {v: "2"}
END
k wait configmap/b '--for=jsonpath={.data.v}=2' --timeout=30s
(sleep 1; k delete configmap b >/dev/null) &
k wait configmap/b --for=delete --timeout=30s
wait
k get configmaps -w --request-timeout=2s >/dev/null 2>&1 || true
k delete configmap a
(k get configmap a 2>&1 || true) | has NotFound
"$kubectl" get nodes | has Ready
"$kubectl" get --raw /version | has gitVersion
"$kubectl" auth can-i list pods | has yes
"$kubectl" api-resources | has configmaps
echo "kubectl: ok"
