// Package authority decides who calls a service and what they may do there.
//
// A caller is who its bearer token or its client certificate says. Tokens are looked for in a file,
// then reviewed by the clusters. What an identity may do is decided by the cluster whose resource
// it wants, with SubjectAccessReview, and by the policy of a file, which has the rules of RBAC.
// What is decided is remembered for a while, and forgotten when a role, a binding or the policy
// changes.
//
//	call ─▶ Authorize: token or certificate ─▶ identity ─▶ handler ─▶ Allow ─▶ answer
//	                                              open streams ◀── Watch: again, after each change
package authority
