package devcluster

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
)

// listOptions are the checked parameters of a list or watch.
type listOptions struct {
	watch      bool
	bookmarks  bool
	initial    *bool // sendInitialEvents
	version    string
	rv         uint64 // of version; 0 when unset or "0"
	match      metav1.ResourceVersionMatch
	limit      int
	token      string
	timeout    time.Duration // 0 when unset
	selector   selector
	includeObj metav1.IncludeObjectPolicy
}

// selector decides what a list or watch is about. The zero value selects everything.
type selector struct {
	namespace string
	label     labels.Selector
	field     fields.Selector
	res       *resource
}

func (s selector) empty() bool { return s.label == nil && s.field == nil }

func (s selector) matches(o *object) bool {
	if s.namespace != "" && o.obj.GetNamespace() != s.namespace {
		return false
	}
	if s.label != nil && !s.label.Matches(labels.Set(o.obj.GetLabels())) {
		return false
	}
	if s.field == nil {
		return true
	}
	set := fields.Set{"metadata.name": o.obj.GetName(), "metadata.namespace": o.obj.GetNamespace()}
	if s.res.fields != nil {
		maps.Copy(set, s.res.fields(o.obj))
	}
	return s.field.Matches(set)
}

// parseListOptions checks the parameters of a list or watch of r in a namespace
// ("" for all). Errors are Status errors.
func parseListOptions(r *resource, namespace, name string, q url.Values) (listOptions, error) {
	o := listOptions{
		watch:      truth(q.Get("watch")),
		bookmarks:  truth(q.Get("allowWatchBookmarks")),
		version:    q.Get("resourceVersion"),
		match:      metav1.ResourceVersionMatch(q.Get("resourceVersionMatch")),
		token:      q.Get("continue"),
		includeObj: metav1.IncludeObjectPolicy(q.Get("includeObject")),
		selector:   selector{namespace: namespace, res: r},
	}
	var err error
	if s := q.Get("limit"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return o, badParameter("limit", s, err)
		}
		o.limit = int(max(n, 0))
	}
	if s := q.Get("timeoutSeconds"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return o, badParameter("timeoutSeconds", s, err)
		}
		o.timeout = time.Duration(min(max(n, 0), 1<<31)) * time.Second
	}
	if s := q.Get("sendInitialEvents"); s != "" {
		o.initial = new(truth(s))
	}
	if errs := o.check(); len(errs) > 0 {
		return o, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if s := q.Get("labelSelector"); s != "" {
		if o.selector.label, err = labels.Parse(s); err != nil {
			return o, apierrors.NewBadRequest(err.Error())
		}
	}
	text := q.Get("fieldSelector")
	if name != "" {
		text = strings.TrimSuffix("metadata.name="+name+","+text, ",")
	}
	if text != "" {
		if o.selector.field, err = parseFields(r, text); err != nil {
			return o, err
		}
	}
	if o.version != "" {
		if o.rv, err = strconv.ParseUint(o.version, 10, 64); err != nil {
			text := fmt.Sprintf("resourceVersion: Invalid value: %q: %v", o.version, err)
			if o.watch {
				return o, plain(text)
			}
			return o, apierrors.NewBadRequest("invalid resource version: " + text)
		}
	}
	return o, nil
}

// check applies the rules of the real server about which parameters go together.
func (o listOptions) check() field.ErrorList {
	var errs field.ErrorList
	matchPath := field.NewPath("resourceVersionMatch")
	known := []metav1.ResourceVersionMatch{metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan, ""}
	if o.watch {
		if o.initial != nil && o.match != metav1.ResourceVersionMatchNotOlderThan {
			errs = append(errs, field.Forbidden(matchPath, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
		}
		if o.match == "" {
			return errs
		}
		if o.initial == nil {
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
	if o.initial != nil {
		errs = append(errs, field.Forbidden(field.NewPath("sendInitialEvents"), "sendInitialEvents is forbidden for list"))
	}
	return errs
}

// parseFields checks a field selector against what r can select by.
func parseFields(r *resource, text string) (fields.Selector, error) {
	sel, err := fields.ParseSelector(text)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, req := range sel.Requirements() {
		if !r.selectable(req.Field) {
			return nil, apierrors.NewBadRequest("field label not supported: " + req.Field)
		}
	}
	return sel, nil
}

func truth(s string) bool {
	b, err := strconv.ParseBool(s)
	return err == nil && b
}

func badParameter(name, value string, err error) error {
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
