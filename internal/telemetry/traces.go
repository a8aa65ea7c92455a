package telemetry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/internal/telemetry/recent"
)

// Traces is the body of /traces without an id.
type Traces struct {
	Traces []recent.Summary `json:"traces"`
}

// traces answers a trace by ?id=, else a list: ?text=, ?failed=, ?at-least= and ?limit= choose.
func traces(w http.ResponseWriter, r *http.Request, kept *recent.Store) {
	q := r.URL.Query()
	if q.Has("id") {
		id := strings.ToLower(q.Get("id"))
		found, ok := kept.Get(id)
		if !ok {
			http.Error(w, fmt.Sprintf("id: trace %q is not kept", id), http.StatusNotFound)
			return
		}
		writeJSON(w, found)
		return
	}
	filter := recent.Filter{Text: q.Get("text"), Limit: 200}
	var err error
	if v := q.Get("failed"); v != "" {
		if filter.Failed, err = strconv.ParseBool(v); err != nil {
			http.Error(w, fmt.Sprintf("failed: %q is not true or false", v), http.StatusBadRequest)
			return
		}
	}
	if v := q.Get("at-least"); v != "" {
		if filter.AtLeast, err = time.ParseDuration(v); err != nil {
			http.Error(w, fmt.Sprintf("at-least: %q is not a duration such as 50ms", v), http.StatusBadRequest)
			return
		}
	}
	if v := q.Get("limit"); v != "" {
		if filter.Limit, err = strconv.Atoi(v); err != nil || filter.Limit < 1 {
			http.Error(w, fmt.Sprintf("limit: %q is not a number above 0", v), http.StatusBadRequest)
			return
		}
	}
	writeJSON(w, Traces{kept.List(filter)})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}
