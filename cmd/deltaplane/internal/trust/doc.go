// Package trust makes what the parts of a deployment know each other by: certificates, NATS users
// and a Redis user, and the policy that says what the parts may do.
package trust
