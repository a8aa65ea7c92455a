// Package expr is what every expression of a caller over an object is held to, in each service: the
// texts it makes are bounded, its patterns are literals, and one compiles at a time.
package expr

import (
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/ext"
)

// maxRecursion is how deep the parser follows an expression.
const maxRecursion = 100

// Environment is what expressions are checked in: CEL's standard library with its macros, strings,
// and optional values, which make `object.?spec.?nodeName` possible. An expression may be so many
// bytes long, and nest so many comprehensions.
func Environment(maxBytes, maxNesting int, more ...cel.EnvOption) (*cel.Env, error) {
	return cel.NewEnv(append([]cel.EnvOption{
		cel.OptionalTypes(),
		ext.Strings(),
		boundedTexts(),
		cel.ParserRecursionLimit(maxRecursion),
		cel.ParserExpressionSizeLimit(maxBytes),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateComprehensionNestingLimit(maxNesting)),
	}, more...)...)
}

// Compiling is held while an expression compiles, in whatever environment: the checkers of cel-go
// 0.33 share what they write.
var Compiling sync.Mutex
