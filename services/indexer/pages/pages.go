// Package pages asks the operating system how memory is mapped. Whatever it
// answers, memory is the same to read and to write; where it does not know how,
// or is told not to (transparent_hugepage "never"), nothing happens.
package pages

// largePage is the large page of the processors we know.
const largePage = 2 << 20

// LargeFrom is the length from which [Large] is worth asking.
const LargeFrom = largePage / 4
