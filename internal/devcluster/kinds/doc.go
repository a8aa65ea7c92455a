// Package kinds says what is served and what each kind's rules are.
//
// In come request bodies and stored encodings; out go objects with their defaults set, and the
// errors of their validation. A Resource is one served kind: handlers, store and tables are driven
// by it. A CRD adds one to the Registry at run time.
//
// It holds no objects and may touch core only.
package kinds
