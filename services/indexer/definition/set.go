package definition

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// EveryCluster is the cluster of a definition that holds for all of them, also
// for ones that are added later.
const EveryCluster = "*"

// Declared is a definition with the clusters for which it holds.
type Declared struct {
	Definition
	// Cluster is one cluster, or [EveryCluster].
	Cluster string
	// Err says why this version cannot use the definition, of which only the name
	// is known then. A newer version may have written it.
	Err error

	raw json.RawMessage // as it was read
}

// In reports whether the definition holds for a cluster. EveryCluster asks
// whether it holds for any.
func (d Declared) In(cluster string) bool {
	return d.Cluster == cluster || d.Cluster == EveryCluster || cluster == EveryCluster
}

// Set is all that is declared for one resource, in every cluster.
type Set []Declared

// setVersion is the version of the form in which sets are kept.
const setVersion = 1

type storedSet struct {
	Version  int               `json:"version"`
	Indexers []json.RawMessage `json:"indexers"`
}

type storedDefinition struct {
	Cluster    string          `json:"cluster"`
	Definition json.RawMessage `json:"definition"`
}

// Encode writes a set in the form that [DecodeSet] reads. Definitions that this
// version cannot use stay as they were read.
func (s Set) Encode() ([]byte, error) {
	out := storedSet{Version: setVersion, Indexers: []json.RawMessage{}}
	for _, d := range s {
		raw := d.raw
		if raw == nil {
			text, err := protojson.Marshal(d.Proto())
			if err == nil {
				raw, err = json.Marshal(storedDefinition{Cluster: d.Cluster, Definition: text})
			}
			if err != nil {
				return nil, fmt.Errorf("write definition %q: %w", d.Name, err)
			}
		}
		out.Indexers = append(out.Indexers, raw)
	}
	return json.Marshal(out)
}

// DecodeSet reads a set; no bytes are an empty one. A definition that cannot be
// read or checked has an Err and harms no other one; only a whole that is no set
// is an error.
func DecodeSet(data []byte) (Set, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var in storedSet
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("read definitions: %w", err)
	}
	if in.Version != setVersion {
		return nil, fmt.Errorf("read definitions: version %d is not known", in.Version)
	}
	var set Set
	for _, raw := range in.Indexers {
		set = append(set, decodeDeclared(raw))
	}
	return set, nil
}

func decodeDeclared(raw json.RawMessage) Declared {
	d := Declared{raw: slices.Clone(raw)}
	var in storedDefinition
	if d.Err = json.Unmarshal(raw, &in); d.Err != nil {
		return d
	}
	if d.Cluster = in.Cluster; d.Cluster == "" {
		d.Err = errors.New("it names no cluster")
	}
	var p indexv1.IndexerDefinition
	if err := protojson.Unmarshal(in.Definition, &p); err != nil {
		var named struct{ Name string }
		_ = json.Unmarshal(in.Definition, &named) // what else is in there is unknown anyway
		d.Name, d.Err = named.Name, fmt.Errorf("it cannot be read: %w", err)
		return d
	}
	def, err := FromProto("definition", &p)
	d.Definition, d.Err = def, errors.Join(d.Err, err)
	return d
}
