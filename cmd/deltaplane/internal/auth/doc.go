// Package auth has the commands that tell callers who they are and what they may do.
package auth
