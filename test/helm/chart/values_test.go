package chart

import (
	"strings"
	"testing"
)

// Each is a kind of fault, and what its refusal names.
func TestValuesThatAreWrongAreRefusedByName(t *testing.T) { //nolint:paralleltest // Helm keeps its settings in variables
	for _, c := range []struct{ set, names string }{
		{"replicas=2", "replicas"},
		{"reflector.replica=2", "replica"},
		{"reflector.replicas=0", "/reflector/replicas"},
		{"reflector.replicas=two", "/reflector/replicas"},
		{"reflector.mirror={}", "/reflector/mirror"},
		{"reflector.mirror={Pods}", "/reflector/mirror/0"},
		{"reflector.extraArgs={page-size=1}", "/reflector/extraArgs/0"},
		{"indexer.memoryBudget=lots", "/indexer/memoryBudget"},
		{"indexer.persistence.size=", "/indexer/persistence/size"},
		{"queue.antiAffinity=soft", "/queue/antiAffinity"},
		{"queue.resources.limits=1", "/queue/resources/limits"},
		{"controllers.run={jobs}", "/controllers/run/0"},
		{"controllers.run={job,job}", "/controllers/run"},
		{"controllers.concurrency=0", "/controllers/concurrency"},
		{"gateway.clientCertificates=front-proxy", "/gateway/clientCertificates"},
		{"nats.replicas=2", "/nats/replicas"},
		{"nats.url=http://nats:4222", "/nats/url"},
		{"nats.maxFileStore=4Gi", "/nats/maxFileStore"},
		{"redis.replicas=2", "/redis/replicas"},
		{"redis.url=nats:6379", "/redis/url"},
		{"tls.mode=tls", "/tls/mode"},
		{"tls.issuer.kind=CA", "/tls/issuer/kind"},
		{"tls.duration=90d", "/tls/duration"},
		{"networkPolicy.clients[0].labels=x", "labels"},
		{"cluster=My_Cluster", "/cluster"},
		{"fullnameOverride=Plane", "/fullnameOverride"},
		{"log.level=trace", "/log/level"},
		{"image.pullPolicy=Sometimes", "/image/pullPolicy"},
		{"gateway.enabled=true", "gateway.enabled needs tls.mode"},
		{"console.enabled=true", "console.enabled needs tls.mode"},
		{"admission.enabled=true,controllers.run={job}", "admission.enabled needs tls.mode"},
		{"admission.enabled=true,tls.mode=cert-manager", "admission.enabled needs controllers.run"},
		{"admission.enabled=true,tls.mode=secrets,controllers.run={job}", "admission.caBundle"},
		{"nats.enabled=false", "nats.url"},
		{"redis.enabled=false", "redis.url"},
	} {
		_, err := Template(root, "--set", c.set)
		if err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s is answered %v, want a refusal that names %s", c.set, err, c.names)
		}
	}
}

// TestEachValueIsKnownToTheSchema refuses a value that nobody checks.
func TestEachValueIsKnownToTheSchema(t *testing.T) { //nolint:paralleltest // see above
	values, properties := readValues(t)
	for key, v := range values {
		checkKnown(t, key, v, properties[key])
	}
}
