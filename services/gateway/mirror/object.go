package mirror

import (
	"strconv"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/jsonscan"
)

// packed is an object of the index as the store keeps it.
func packed(o client.Object, sequence uint64) (*store.Object, error) {
	labels, err := labelsOf(o.Payload)
	if err != nil {
		return nil, err
	}
	return store.NewObject(store.ObjectConfig{
		Key: o.Key, UID: o.UID, RV: o.ResourceVersion, Epoch: 1, Sequence: sequence, Labels: labels, Payload: o.Payload,
	}), nil
}

func labelsOf(object []byte) (*store.Labels, error) {
	text := Member(object, "metadata", "labels")
	if len(text) < len(`{"a":""}`) {
		return nil, nil //nolint:nilnil // nil has none
	}
	var pairs []store.Pair
	err := jsonscan.Members(text, func(_, _ int, key, value []byte) error {
		name, err := jsonscan.Unquote(append(append([]byte{'"'}, key...), '"'))
		if err != nil {
			return err
		}
		v, err := jsonscan.Unquote(value)
		pairs = append(pairs, store.Pair{Name: name, Value: v})
		return err
	})
	return store.NewLabels(pairs), err
}

// Member is the value at a path of names in a JSON object, as it is written; nil where there is
// none.
func Member(object []byte, path ...string) []byte {
	begin, end := Place(object, path...)
	if begin == end {
		return nil
	}
	return object[begin:end]
}

// Place is where the value at a path of names stands in a JSON object; nowhere is 0, 0.
func Place(object []byte, path ...string) (begin, end int) {
	end = len(object)
	for _, name := range path {
		within := object[begin:end]
		if len(within) == 0 || within[0] != '{' {
			return 0, 0
		}
		at, size := 0, 0
		_ = jsonscan.Members(within, func(_, ends int, key, value []byte) error {
			if string(key) != name {
				return nil
			}
			at, size = ends-len(value), len(value)
			return errFound
		})
		begin, end = begin+at, begin+at+size
	}
	return begin, end
}

type found struct{}

func (found) Error() string { return "found" }

var errFound error = found{}

// Text is the string at a path of names in a JSON object; empty where there is none.
func Text(object []byte, path ...string) string {
	value := Member(object, path...)
	if len(value) == 0 || value[0] != '"' {
		return ""
	}
	text, _ := jsonscan.Unquote(value) // what is no text is none
	return text
}

// Scalar is [Text], or a number or a boolean as it is written.
func Scalar(object []byte, path ...string) string {
	value := Member(object, path...)
	if len(value) == 0 || value[0] == '{' || value[0] == '[' || value[0] == 'n' {
		return ""
	}
	if value[0] == '"' {
		return Text(object, path...)
	}
	return string(value)
}

// number is a resource version as a number; false when it is none.
func number(version string) (uint64, bool) {
	n, err := strconv.ParseUint(version, 10, 63)
	return n, err == nil
}

func formatted(version uint64) string { return strconv.FormatUint(version, 10) }

// Version of an object.
func Version(o *store.Object) uint64 {
	n, _ := number(o.RV()) // it was looked at when it came
	return n
}
