package read

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
)

// Options are the checked parameters of a list or watch.
type Options struct {
	Watch         bool
	Bookmarks     bool
	Initial       *bool // sendInitialEvents
	version       string
	RV            uint64 // of version; 0 when unset or "0"
	match         metav1.ResourceVersionMatch
	limit         int
	token         string
	Timeout       time.Duration // 0 when unset
	Selector      Selector
	IncludeObject metav1.IncludeObjectPolicy
}

// Selector decides what a list or watch is about. The zero value selects everything.
type Selector struct {
	Namespace string
	label     labels.Selector
	field     fields.Selector
	Resource  *kinds.Resource
}

func (s Selector) empty() bool { return s.label == nil && s.field == nil }

// single reports whether one object at most can be selected, which is known by its key.
func (s Selector) single() bool {
	if s.field == nil || s.Namespace == "" && s.Resource.Namespaced {
		return false
	}
	_, named := s.field.RequiresExactMatch("metadata.name")
	return named
}

// Matches reports whether an object is selected.
func (s Selector) Matches(o *store.Object) bool {
	if s.Namespace != "" && o.Decoded.GetNamespace() != s.Namespace {
		return false
	}
	if s.label != nil && !s.label.Matches(labels.Set(o.Decoded.GetLabels())) {
		return false
	}
	if s.field == nil {
		return true
	}
	set := fields.Set{"metadata.name": o.Decoded.GetName(), "metadata.namespace": o.Decoded.GetNamespace()}
	if s.Resource.Fields != nil {
		maps.Copy(set, s.Resource.Fields(o.Decoded))
	}
	return s.field.Matches(set)
}

// ParseOptions checks the parameters of a list or watch of r in a namespace
// ("" for all). Errors are Status errors.
func ParseOptions(r *kinds.Resource, namespace, name string, q url.Values) (Options, error) {
	o := Options{
		Watch:         Truth(q.Get("watch")),
		Bookmarks:     Truth(q.Get("allowWatchBookmarks")),
		version:       q.Get("resourceVersion"),
		match:         metav1.ResourceVersionMatch(q.Get("resourceVersionMatch")),
		token:         q.Get("continue"),
		IncludeObject: metav1.IncludeObjectPolicy(q.Get("includeObject")),
		Selector:      Selector{Namespace: namespace, Resource: r},
	}
	var err error
	if s := q.Get("limit"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return o, BadParameter("limit", s, err)
		}
		o.limit = int(max(n, 0))
	}
	if s := q.Get("timeoutSeconds"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return o, BadParameter("timeoutSeconds", s, err)
		}
		o.Timeout = time.Duration(min(max(n, 0), 1<<31)) * time.Second
	}
	if s := q.Get("sendInitialEvents"); s != "" {
		o.Initial = new(Truth(s))
	}
	if errs := o.check(); len(errs) > 0 {
		return o, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if s := q.Get("labelSelector"); s != "" {
		if o.Selector.label, err = labels.Parse(s); err != nil {
			return o, apierrors.NewBadRequest(err.Error())
		}
	}
	text := q.Get("fieldSelector")
	if name != "" {
		text = strings.TrimSuffix("metadata.name="+name+","+text, ",")
	}
	if text != "" {
		if o.Selector.field, err = parseFields(r, text); err != nil {
			return o, err
		}
	}
	if o.version != "" {
		if o.RV, err = strconv.ParseUint(o.version, 10, 64); err != nil {
			text := fmt.Sprintf("resourceVersion: Invalid value: %q: %v", o.version, err)
			if o.Watch {
				return o, kinds.Plain(text)
			}
			return o, apierrors.NewBadRequest("invalid resource version: " + text)
		}
	}
	return o, nil
}

// check applies the rules of the real server about which parameters go together.
func (o Options) check() field.ErrorList {
	var errs field.ErrorList
	matchPath := field.NewPath("resourceVersionMatch")
	known := []metav1.ResourceVersionMatch{metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan, ""}
	if o.Watch {
		if o.Initial != nil && o.match != metav1.ResourceVersionMatchNotOlderThan {
			errs = append(errs, field.Forbidden(matchPath, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
		}
		if o.match == "" {
			return errs
		}
		if o.Initial == nil {
			errs = append(errs, field.Forbidden(matchPath, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
		}
		if o.match != metav1.ResourceVersionMatchNotOlderThan {
			errs = append(errs, field.NotSupported(matchPath, o.match, []metav1.ResourceVersionMatch{metav1.ResourceVersionMatchNotOlderThan}))
		}
		if o.token != "" {
			errs = append(errs, field.Forbidden(matchPath, "resourceVersionMatch is forbidden when continue is provided"))
		}
		return errs
	}
	if o.match != "" {
		if o.version == "" {
			errs = append(errs, field.Forbidden(matchPath, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
		}
		if o.token != "" {
			errs = append(errs, field.Forbidden(matchPath, "resourceVersionMatch is forbidden when continue is provided"))
		}
		if o.match != metav1.ResourceVersionMatchExact && o.match != metav1.ResourceVersionMatchNotOlderThan {
			errs = append(errs, field.NotSupported(matchPath, o.match, known))
		}
		if o.match == metav1.ResourceVersionMatchExact && o.version == "0" {
			errs = append(errs, field.Forbidden(matchPath, `resourceVersionMatch "exact" is forbidden for resourceVersion "0"`))
		}
	}
	if o.Initial != nil {
		errs = append(errs, field.Forbidden(field.NewPath("sendInitialEvents"), "sendInitialEvents is forbidden for list"))
	}
	return errs
}

// parseFields checks a field selector against what r can select by.
func parseFields(r *kinds.Resource, text string) (fields.Selector, error) {
	sel, err := fields.ParseSelector(text)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, req := range sel.Requirements() {
		if !r.Selectable(req.Field) {
			return nil, apierrors.NewBadRequest("field label not supported: " + req.Field)
		}
	}
	return sel, nil
}

// Truth reads a boolean parameter; what is not a boolean is false.
func Truth(s string) bool {
	b, err := strconv.ParseBool(s)
	return err == nil && b
}

// BadParameter is the Status error for a parameter that cannot be converted.
func BadParameter(name, value string, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("converting (%s %q): %v", name, value, err))
}

// pageToken is what a continue parameter holds: the snapshot and the key to go on from.
type pageToken struct {
	APIVersion string `json:"v"`
	RV         int64  `json:"rv"`
	Start      string `json:"start"`
}

// latest is the version in a token that continues from whatever is current.
const latest = -1

func (p pageToken) encode() string {
	p.APIVersion = "meta.k8s.io/v1"
	b, err := json.Marshal(p)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func parsePageToken(s string) (pageToken, error) {
	var p pageToken
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	switch {
	case err != nil:
	case p.APIVersion != "meta.k8s.io/v1":
		err = fmt.Errorf("unknown version %q", p.APIVersion)
	case p.RV == 0 || p.RV < latest:
		err = errors.New("incorrect encoded start resourceVersion")
	case p.Start == "":
		err = errors.New("encoded start key is empty")
	}
	if err != nil {
		return p, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: continue key is not valid: %v", err))
	}
	return p, nil
}
