package kube

import "encoding/json"

// Decode decodes an object that was read as JSON; one that is nil stays nil. It passes an error on.
func Decode[T any](raw []byte, err error) (*T, error) {
	if err != nil || raw == nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, err
	}
	return v, nil
}

// DecodeFound is [Decode] where an object that is not found is nil.
func DecodeFound[T any](raw []byte, err error) (*T, error) {
	if IsNotFound(err) {
		return nil, nil
	}
	return Decode[T](raw, err)
}
