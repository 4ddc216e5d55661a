package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// A history is JSON lines, one call a line, in any order. Calls of one group concern that group's keys alone, so each
// group is judged by itself. Times are counts of a clock that ticks at each invocation and each return.

// call is one call of one client: what was asked, when, and what is known of its outcome.
type call struct {
	Client  int    `json:"client"`
	Group   string `json:"group"`
	Kind    string `json:"call"` // get, scan, query, commit, or seen: records that a watch told of, at no known time
	Invoked int64  `json:"invoked"`
	// Returned is absent for a call whose outcome is unknown.
	Returned *int64 `json:"returned,omitempty"`
	Outcome  string `json:"outcome"` // ok, conflict, unknown

	// What was asked.
	Key   string `json:"key,omitempty"`
	Index string `json:"index,omitempty"`
	Start string `json:"start,omitempty"`
	End   string `json:"end,omitempty"`
	Limit *int   `json:"limit,omitempty"`
	Ops   []op   `json:"ops,omitempty"`

	// What was answered.
	Records  []record  `json:"records,omitempty"`
	Revision int64     `json:"revision,omitempty"`
	Keys     []*string `json:"keys,omitempty"`
	Conflict *conflict `json:"conflict,omitempty"`

	// What resolve found out.
	id       int64 // unique in the history, above 0
	resolved bool  // of a commit with unknown outcome: it took effect, as Revision
}

// op is one operation of a change set. Values are unique in a history.
type op struct {
	Kind     string       `json:"op"` // put, sequential, delete, delete_range, check
	Key      string       `json:"key,omitempty"`
	Prefix   string       `json:"prefix,omitempty"`
	Start    string       `json:"start,omitempty"`
	End      string       `json:"end,omitempty"`
	Value    string       `json:"value,omitempty"`
	Expected *int64       `json:"expected,omitempty"`
	Indexes  []indexEntry `json:"indexes,omitempty"`
}

type indexEntry struct {
	Name string `json:"name"`
	Key  string `json:"key,omitempty"`
}

// record is a record as it was read; IndexKey stands in the answers of queries alone.
type record struct {
	IndexKey string `json:"index_key,omitempty"`
	Key      string `json:"key,omitempty"`
	Value    string `json:"value,omitempty"`
	Version  int64  `json:"version"`
}

type conflict struct {
	Key      string `json:"key,omitempty"`
	Expected int64  `json:"expected,omitempty"`
	Actual   int64  `json:"actual"`
}

const lineBytesMax = 64 * 1024 * 1024

func read(from io.Reader) ([]*call, error) {
	var calls []*call
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, 1024*1024), lineBytesMax)
	for lines.Scan() {
		c := &call{id: int64(len(calls) + 1)}
		if err := json.Unmarshal(lines.Bytes(), c); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(calls)+1, err)
		}
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(calls)+1, err)
		}
		calls = append(calls, c)
	}
	return calls, lines.Err()
}

// check refuses what this judge would not understand: a misunderstood line must not count as legal.
func (c *call) check() error {
	switch c.Kind {
	case "get", "scan", "query", "seen":
		if c.Outcome != "ok" {
			return fmt.Errorf("a %s with outcome %q says nothing", c.Kind, c.Outcome)
		}
	case "commit":
		switch c.Outcome {
		case "ok":
			if len(c.Keys) != len(c.Ops) {
				return fmt.Errorf("%d keys for %d operations", len(c.Keys), len(c.Ops))
			}
		case "conflict":
			if c.Conflict == nil {
				return fmt.Errorf("a conflict that does not say which")
			}
		case "unknown":
		default:
			return fmt.Errorf("the outcome %q", c.Outcome)
		}
	default:
		return fmt.Errorf("the call %q", c.Kind)
	}
	for _, o := range c.Ops {
		switch o.Kind {
		case "put", "sequential", "delete", "delete_range", "check":
		default:
			return fmt.Errorf("the operation %q", o.Kind)
		}
	}
	if c.Kind != "seen" && (c.Returned == nil) != (c.Outcome == "unknown") {
		return fmt.Errorf("a return, or the lack of one, that does not fit the outcome %q", c.Outcome)
	}
	if c.Returned != nil && *c.Returned <= c.Invoked {
		return fmt.Errorf("returned at %d, invoked at %d", *c.Returned, c.Invoked)
	}
	return nil
}
