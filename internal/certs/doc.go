// Package certs reads certificates and keys from files and follows their renewal, makes those of a
// deployment, and shows when they expire.
package certs
