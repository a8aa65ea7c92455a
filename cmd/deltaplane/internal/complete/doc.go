// Package complete offers what may stand at the next place of a command line.
//
// In come the words so far and the flags, by which services are asked as the command itself would.
// Out go names with a word about each. It answers within a second or offers nothing, asks for no
// more than a page, and says nothing of what went wrong: that would stand in the user's line.
package complete
