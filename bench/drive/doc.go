// Package drive does to a running queue service what ghz cannot: it settles what it got.
package drive
