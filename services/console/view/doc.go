// Package view shows the pipeline live: each view is something that is asked again and again or
// watched, and that several subscriptions show.
//
// In come a caller's connections and what a subscription asks for. Out come states of it, as
// messages of the console's contract. What two subscriptions of a caller show is asked for once,
// and only while somebody shows it. A reader takes the latest state when it has time for it.
package view
