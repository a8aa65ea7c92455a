package testing

// Summary is what a failed test shows.
func Summary(e *Env) string { return e.adversary.summary() }

// Validate is what [Start] checks.
func Validate(c Config) error { return c.withDefaults().validate() }

// Seeds and Again are how [Run] chooses seeds, and how a test is run again.
var (
	Seeds = seeds
	Again = again
)
