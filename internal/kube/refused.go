package kube

import (
	"errors"
	"net/http"
	"slices"
)

// What the API server says about a call that it did not do. A [StatusError] is each of these that
// it says, and what stands for a server in tests may answer with them as they are. They are asked
// for by the predicates of the same names.
var (
	ErrNotFound      = errors.New("not found")
	ErrAlreadyExists = errors.New("already exists")
	ErrConflict      = errors.New("conflict")
	ErrRefused       = errors.New("refused")
	ErrInvalid       = errors.New("invalid")
	ErrTerminating   = errors.New("namespace is terminating")
)

// Is makes [errors.Is] find the answers above.
func (e *StatusError) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.says(http.StatusNotFound, "NotFound")
	case ErrAlreadyExists:
		return e.says(-1, "AlreadyExists")
	case ErrConflict:
		return e.says(http.StatusConflict, "Conflict")
	case ErrInvalid:
		return e.says(http.StatusUnprocessableEntity, "Invalid")
	case ErrTerminating:
		return slices.ContainsFunc(e.Causes, func(c Cause) bool { return c.Reason == "NamespaceTerminating" })
	case ErrRefused:
		switch {
		case e.Is(ErrNotFound), e.Is(ErrAlreadyExists), e.Is(ErrConflict):
			return false
		case e.Is(ErrInvalid), e.Is(ErrTerminating):
			return true
		}
		return e.Code >= 400 && e.Code < 500 && !IsTimeout(e)
	}
	return false
}

// IsNotFound reports that there is no such object, or no such resource (404).
func IsNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// IsAlreadyExists reports a create of a name that is taken (409).
func IsAlreadyExists(err error) bool { return errors.Is(err, ErrAlreadyExists) }

// IsConflict reports a failed precondition on UID or resource version (409).
func IsConflict(err error) bool { return errors.Is(err, ErrConflict) }

// IsRefused reports that the server understood the call and did not do it, for a reason that is
// none of the three above: invalid, forbidden, over quota, too many requests.
func IsRefused(err error) bool { return errors.Is(err, ErrRefused) }

// IsInvalid reports that it was refused because the object would not be valid (422), as when a
// patch names another UID than the object has.
func IsInvalid(err error) bool { return errors.Is(err, ErrInvalid) }

// IsTerminating reports that it was refused because the namespace is being deleted.
func IsTerminating(err error) bool { return errors.Is(err, ErrTerminating) }

// IsUnresolved reports that the call may have been done or not: no answer came, or one that does
// not say, as when the server gave up waiting.
func IsUnresolved(err error) bool {
	return err != nil && !IsNotFound(err) && !IsAlreadyExists(err) && !IsConflict(err) && !IsRefused(err)
}
