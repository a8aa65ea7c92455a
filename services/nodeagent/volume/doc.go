// Package volume keeps the volumes of the pods on a node: directories under one root,
// one per pod and volume, filled from the API server and from the pod itself, and
// kept current while the pod runs.
//
// A volume of files (configMap, secret, downwardAPI, projected) has the layout that
// Kubernetes promises its readers: the files are symbolic links into ..data, a link
// to a directory that is written whole and swapped in one rename, so that a reader sees
// all files of one moment.
//
//	ROOT/<pod UID>/volumes/<kind>/<volume>/
//	    ..2026_11_21_09_53_00.123/user   file
//	    ..data -> ..2026_11_21_09_53_00.123
//	    user -> ..data/user
package volume
