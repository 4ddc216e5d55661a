package main

import "fmt"

// What is known of a change set whose caller got no answer? Values are unique, so whoever reads one of them shows that
// the change set took effect, and as which revision. What nobody ever saw anything of may be left out of the history if
// all it could do is put records: had it taken effect, no answer of anybody would be another. What could delete stays,
// open-ended: it took effect at any time since its invocation, or never.

// resolve settles what it can of one group's commits with unknown outcome, and returns the calls that are to be judged.
func resolve(calls []*call) ([]*call, []string) {
	var complaints []string
	writers := map[string]*call{}
	known := map[int64]bool{}
	for _, c := range calls {
		if c.Kind != "commit" {
			continue
		}
		for _, o := range c.Ops {
			if o.Kind != "put" && o.Kind != "sequential" {
				continue
			}
			if writers[o.Value] != nil {
				complaints = append(complaints, fmt.Sprintf("the history is no use: the value %q is written twice", o.Value))
			}
			writers[o.Value] = c
		}
		if c.Outcome == "ok" {
			known[c.Revision] = true
		}
		if c.Outcome == "unknown" {
			c.Keys = make([]*string, len(c.Ops))
		}
	}
	for _, c := range calls {
		for _, r := range c.Records {
			writer := writers[r.Value]
			switch {
			case writer == nil:
				complaints = append(complaints, fmt.Sprintf("%s: nobody wrote the value %q", r.Key, r.Value))
			case writer.Outcome == "conflict":
				complaints = append(complaints, fmt.Sprintf("%s: the value %q was read, and its write was refused", r.Key, r.Value))
			case writer.Outcome == "unknown":
				if writer.resolved && writer.Revision != r.Version {
					complaints = append(complaints,
						fmt.Sprintf("%s: one change set was read as revisions %d and %d", r.Key, writer.Revision, r.Version))
				}
				writer.resolved, writer.Revision = true, r.Version
				known[r.Version] = true
				writer.assign(r)
			case writer.Revision != r.Version:
				// Without this a watch could tell of wrong versions, since no model judges what it told.
				complaints = append(complaints,
					fmt.Sprintf("%s: %q was written as revision %d and read as %d", r.Key, r.Value, writer.Revision, r.Version))
			}
		}
	}
	// Versions that a refusal named and nobody read: some change set with unknown outcome wrote them.
	unexplained := map[string]bool{}
	for _, c := range calls {
		if c.Conflict != nil && c.Conflict.Actual != 0 && !known[c.Conflict.Actual] {
			unexplained[c.Conflict.Key] = true
		}
	}
	var kept []*call
	for _, c := range calls {
		if c.Kind != "seen" && !(c.Kind == "commit" && c.Outcome == "unknown" && !c.resolved && c.leavesNoTrace(unexplained)) {
			kept = append(kept, c)
		}
	}
	return kept, complaints
}

// assign notes which key the store gave to a sequential put, now that its record was read.
func (c *call) assign(r record) {
	for i, o := range c.Ops {
		if o.Kind == "sequential" && o.Value == r.Value {
			key := r.Key
			c.Keys[i] = &key
		}
	}
}

// leavesNoTrace says whether no answer in the history can depend on whether this took effect.
func (c *call) leavesNoTrace(unexplained map[string]bool) bool {
	for _, o := range c.Ops {
		switch o.Kind {
		case "delete", "delete_range":
			return false
		case "put":
			if unexplained[o.Key] {
				return false
			}
		}
	}
	return true
}
