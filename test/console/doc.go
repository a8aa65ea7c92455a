// Package console tests the console's pages in a real browser, Debian's Chromium, on a running
// `deltaplane up`. It is a module of its own, since only it needs what drives the browser.
//
// A test waits for what a person would see, with bounds that no machine reaches. Figures that
// depend on the machine are printed and not judged.
package console
