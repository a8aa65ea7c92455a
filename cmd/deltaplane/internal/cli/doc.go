// Package cli is what every command is built with: argument checks, settings, connections and exit
// codes.
//
// In come a command line, the environment and the file named by --config. Out go filled flags,
// connections to the services and to the API server, and for an error its text and the exit code of
// the process. It knows no command.
package cli
