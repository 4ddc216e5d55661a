package main

import (
	"hash/fnv"
	"sort"
	"strconv"
	"strings"
)

// The metadata store as its contract describes it, as one sequential machine: records with versions and index entries,
// a revision that rises with every change set, and a number for each prefix of sequential puts that never goes back.
//
// A version below 0 stands for one that nobody was told: it is minus the id of the commit that wrote the record.

const sequenceDigits = 20

// sharedRevisions lets change sets have one revision if they touch different keys.
var sharedRevisions bool

type entry struct {
	key, value string
	version    int64
	indexes    []indexEntry
}

type counter struct {
	prefix string
	last   uint64
}

// state is never changed once it is made.
type state struct {
	entries  []entry   // by key
	counters []counter // by prefix
	revision int64     // the last that is known
	touched  []string  // keys that were written or deleted at that revision
}

func (s *state) find(key string) (int, bool) {
	i := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].key >= key })
	return i, i < len(s.entries) && s.entries[i].key == key
}

func (s *state) version(key string) int64 {
	if i, found := s.find(key); found {
		return s.entries[i].version
	}
	return 0
}

func (s *state) between(start, end string) []entry {
	from, _ := s.find(start)
	to, _ := s.find(end)
	if from >= to {
		return nil
	}
	return s.entries[from:to]
}

func (s *state) copy() *state {
	return &state{append([]entry(nil), s.entries...), append([]counter(nil), s.counters...), s.revision, s.touched}
}

func (s *state) put(e entry) {
	i, found := s.find(e.key)
	if !found {
		s.entries = append(s.entries, entry{})
		copy(s.entries[i+1:], s.entries[i:])
	}
	s.entries[i] = e
}

func (s *state) remove(start, end string) bool {
	from, _ := s.find(start)
	to, _ := s.find(end)
	if from >= to {
		return false
	}
	s.entries = append(s.entries[:from], s.entries[to:]...)
	return true
}

// take gives out a number of a prefix; false if it is not above all that were given out before.
func (s *state) take(prefix string, number uint64) bool {
	i := sort.Search(len(s.counters), func(i int) bool { return s.counters[i].prefix >= prefix })
	if i == len(s.counters) || s.counters[i].prefix != prefix {
		s.counters = append(s.counters, counter{})
		copy(s.counters[i+1:], s.counters[i:])
		s.counters[i] = counter{prefix, 0}
	}
	if number <= s.counters[i].last {
		return false
	}
	s.counters[i].last = number
	return true
}

func equal(a, b *state) bool {
	if a.revision != b.revision || len(a.entries) != len(b.entries) || len(a.counters) != len(b.counters) ||
		len(a.touched) != len(b.touched) {
		return false
	}
	for i := range a.touched {
		if a.touched[i] != b.touched[i] {
			return false
		}
	}
	for i := range a.entries {
		// Values are unique, so one value never has two sets of index entries.
		if a.entries[i].key != b.entries[i].key || a.entries[i].value != b.entries[i].value ||
			a.entries[i].version != b.entries[i].version {
			return false
		}
	}
	for i := range a.counters {
		if a.counters[i] != b.counters[i] {
			return false
		}
	}
	return true
}

func (s *state) hash() uint64 {
	h := fnv.New64a()
	for _, e := range s.entries {
		h.Write([]byte(e.key))
		h.Write([]byte{0})
		h.Write([]byte(e.value))
		h.Write([]byte{0})
	}
	h.Write([]byte(strconv.FormatInt(s.revision, 10)))
	return h.Sum64()
}

// step says whether a store in this state may give this answer, and its state afterwards.
func (s *state) step(c *call) (bool, *state) {
	switch c.Kind {
	case "get":
		return same(s.between(c.Key, c.Key+"\x00"), c), s
	case "scan":
		return same(s.between(c.Start, c.End), c), s
	case "query":
		return s.answersQuery(c), s
	}
	switch {
	case c.Outcome == "conflict":
		return s.refuses(c)
	case c.Outcome == "ok" || c.resolved:
		if !s.admits(c) {
			return false, s
		}
		return s.apply(c)
	case s.admits(c):
		return s.apply(c)
	}
	// Without an answer it may have come too late, when its conditions held no more.
	return true, s
}

func same(entries []entry, c *call) bool {
	if c.Limit != nil && len(entries) > *c.Limit {
		entries = entries[:*c.Limit]
	}
	if len(entries) != len(c.Records) {
		return false
	}
	for i, e := range entries {
		if r := c.Records[i]; e.key != r.Key || e.value != r.Value || e.version != r.Version {
			return false
		}
	}
	return true
}

func (s *state) answersQuery(c *call) bool {
	type hit struct {
		indexKey string
		entry
	}
	var hits []hit
	for _, e := range s.entries {
		for _, i := range e.indexes {
			if i.Name == c.Index && c.Start <= i.Key && i.Key < c.End {
				hits = append(hits, hit{i.Key, e})
			}
		}
	}
	// Entries are in key order already, and one record carries an index key once.
	sort.SliceStable(hits, func(a, b int) bool { return hits[a].indexKey < hits[b].indexKey })
	if c.Limit != nil && len(hits) > *c.Limit {
		hits = hits[:*c.Limit]
	}
	if len(hits) != len(c.Records) {
		return false
	}
	for i, h := range hits {
		r := c.Records[i]
		if h.indexKey != r.IndexKey || h.key != r.Key || h.value != r.Value || h.version != r.Version {
			return false
		}
	}
	return true
}

func (s *state) admits(c *call) bool {
	for _, o := range c.Ops {
		if o.Expected != nil && s.version(o.Key) != *o.Expected {
			return false
		}
	}
	return true
}

// refuses says whether the conflict that was answered is one, and learns from it a version that nobody was told before.
func (s *state) refuses(c *call) (bool, *state) {
	told := c.Conflict
	if told.Expected == told.Actual {
		return false, s
	}
	for _, o := range c.Ops {
		if o.Key != told.Key || o.Expected == nil || *o.Expected != told.Expected {
			continue
		}
		actual := s.version(o.Key)
		if actual >= 0 || told.Actual <= 0 {
			return actual == told.Actual, s
		}
		next := s.copy()
		for i := range next.entries {
			if next.entries[i].version == actual {
				next.entries[i].version = told.Actual
			}
		}
		return true, next
	}
	return false, s
}

// apply makes the change set's changes; false if the revision or the numbers that it was given are not above the last.
func (s *state) apply(c *call) (bool, *state) {
	version := c.Revision
	isKnown := c.Outcome == "ok" || c.resolved
	if !isKnown {
		version = -c.id
	}
	next := s.copy()
	changes := false
	for i, o := range c.Ops {
		var assigned *string
		switch o.Kind {
		case "put":
			next.put(entry{o.Key, o.Value, version, o.Indexes})
			assigned, changes = &o.Key, true
		case "sequential":
			changes = true
			if assigned = c.Keys[i]; assigned == nil {
				if c.Outcome == "ok" {
					return false, s
				}
				// Nobody read its record, so it was gone before anybody could, and only its number is used.
				continue
			}
			number, err := strconv.ParseUint(strings.TrimPrefix(*assigned, o.Prefix+"-"), 10, 64)
			if err != nil || len(*assigned) != len(o.Prefix)+1+sequenceDigits || !next.take(o.Prefix, number) {
				return false, s
			}
			next.put(entry{*assigned, o.Value, version, o.Indexes})
		case "delete":
			changes = next.remove(o.Key, o.Key+"\x00") || changes
		case "delete_range":
			changes = next.remove(o.Start, o.End) || changes
		}
		if c.Outcome == "ok" && !sameText(c.Keys[i], assigned) {
			return false, s
		}
	}
	if isKnown {
		if c.Revision < s.revision || changes && c.Revision == s.revision && !sharedRevisions {
			return false, s
		}
		if c.Revision > s.revision {
			next.touched = nil
		}
		next.revision = c.Revision
		if sharedRevisions && !next.touch(s, c) {
			return false, s
		}
	}
	return true, next
}

// touch notes the keys that a change set wrote or deleted; false if another one with its revision did so too.
func (s *state) touch(before *state, c *call) bool {
	touched := append([]string(nil), s.touched...)
	for i, o := range c.Ops {
		var keys []string
		switch o.Kind {
		case "put":
			keys = []string{o.Key}
		case "sequential":
			if c.Keys[i] != nil {
				keys = []string{*c.Keys[i]}
			}
		case "delete":
			if before.version(o.Key) != 0 {
				keys = []string{o.Key}
			}
		case "delete_range":
			for _, e := range before.between(o.Start, o.End) {
				keys = append(keys, e.key)
			}
		}
		for _, key := range keys {
			for _, other := range s.touched {
				if key == other {
					return false
				}
			}
		}
		touched = append(touched, keys...)
	}
	sort.Strings(touched)
	s.touched = touched
	return true
}

func sameText(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
