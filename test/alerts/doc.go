// Package alerts makes the dashboards of deploy/monitoring. Its tests hold dashboards, rules and
// their pages in docs/runbooks to what the services show. It is a module of its own, since it takes
// Prometheus to parse and to run expressions.
//
// DELTAPLANE_GOLDEN=write rewrites what is made: the dashboards, and prometheusrule.yaml of
// rules.yaml.
package alerts
