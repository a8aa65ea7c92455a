// Package environ makes the environment of a container from its spec: literal
// values with $(NAME) references, fields of the pod, resources of its containers,
// keys of config maps and secrets.
//
// It also resolves the fields and resources that downward API volumes show, as
// both take them from the same references.
package environ
