package devcluster

// object is one version of one API object. It is never changed once stored:
// lists, watches and the log share it and its bytes.
type object struct {
	key string // "namespace/name", or "name" when cluster-scoped
	rv  uint64
	obj apiObject
	raw []byte // JSON beginning with kind and apiVersion
}

// clone returns a copy of the decoded object that the caller may change.
func (o *object) clone() apiObject { return o.obj.DeepCopyObject().(apiObject) }
