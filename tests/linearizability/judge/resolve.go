package main

import "fmt"

// What is known of a change set whose caller got no answer? Values are unique, so whoever reads one of them shows that
// the change set took effect, and as which revision. Any other took effect at any time since its invocation, or never.
// If all that it could do was add sequential records it is left out of the history: that they are in no answer shows
// nothing. The rest stays, open-ended, and each makes the search longer. Of those, the ones that nobody saw a value of
// most likely never took effect; but a put may show by the record that it replaced, and by a version in a refusal.

// resolve settles what it can of one group's commits with unknown outcome, and returns the calls that are to be judged:
// apart from the others, those that should have been seen had they taken effect.
func resolve(calls []*call) (kept, unseen []*call, complaints []string) {
	writers := map[string]*call{}
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
				writer.assign(r)
			case writer.Revision != r.Version:
				// Without this a watch could tell of wrong versions, since no model judges what it told.
				complaints = append(complaints,
					fmt.Sprintf("%s: %q was written as revision %d and read as %d", r.Key, r.Value, writer.Revision, r.Version))
			}
		}
	}
	for _, c := range calls {
		switch {
		case c.Kind == "seen":
		case c.Kind != "commit" || c.Outcome != "unknown" || c.resolved:
			kept = append(kept, c)
		case c.changes() && c.writes():
			unseen = append(unseen, c)
		case c.changes():
			kept = append(kept, c)
		}
	}
	return kept, unseen, complaints
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

// changes says whether a change set may change what is there, and not only add to it.
func (c *call) changes() bool {
	for _, o := range c.Ops {
		if o.Kind != "sequential" && o.Kind != "check" {
			return true
		}
	}
	return false
}
