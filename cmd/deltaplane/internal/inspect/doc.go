// Package inspect holds the commands that explain: describe, reflection, status, health and logs.
//
// In comes the name of a node, a pod, a service or nothing. Out goes one answer made from what
// several services, and sometimes the API server or a file of a container, say of it.
package inspect
