// Package table makes the rows of a Table, as kubectl shows them, from objects as they are stored.
//
// Which columns there are is the API server's to say, which answers it beside a list of one object.
// What stands in them is made here: for built-in resources by the functions of this package, as
// long as the server has the columns that they know, and for custom resources by the JSONPaths of
// their definitions. Of other resources, and of columns that are not known, no Table is made. Where
// there is no server to ask, [Builtin] and [Custom] say which columns kubectl shows.
package table
