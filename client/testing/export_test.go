package testing

// Summary is what a failed test shows.
func Summary(e *Env) string { return e.adversary.summary() }
