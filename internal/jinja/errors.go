package jinja

import (
	"fmt"
	"strconv"
)

// Error says why a template was refused or a Render failed.
type Error struct {
	Line    int    // line of the template, from 1
	Message string // names of the template, types and, if Raised, the template's own words
	Raised  bool   // the template called raise_exception
	Limit   bool   // a bound of Env or of the package was met
}

func (e *Error) Error() string { return "line " + strconv.Itoa(e.Line) + ": " + e.Message }

// fail ends the Parse or Render that is running. The line is filled in by recovered.
func fail(msg string) { panic(&Error{Message: msg}) }

func failf(format string, args ...any) { fail(fmt.Sprintf(format, args...)) }

func failLimit(what string) { panic(&Error{Message: what, Limit: true}) }

// recovered turns what recover returned into an *Error, or nil.
func recovered(r any, line int) *Error {
	switch e := r.(type) {
	case nil:
		return nil
	case *Error:
		if e.Line == 0 {
			e.Line = line
		}
		return e
	}
	return &Error{Line: line, Message: fmt.Sprint("BUG: ", r)}
}
