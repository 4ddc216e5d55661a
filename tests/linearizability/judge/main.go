// The judge reads a history of concurrent calls of a metadata store as JSON lines on standard input and says whether a
// store that keeps its contract could have given these answers: whether each group of keys is linearizable
// (github.com/anishathalye/porcupine) and revisions rise over all groups.
//
// It prints one line of JSON: {"verdict": "legal" | "illegal" | "undecided", "operations": N, "groups": N,
// "complaints": [...]}. Undecided means that the time given was too short. With a line that it does not understand it
// ends with status 2.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

const stuckMax = 8 // Of the calls that fit nowhere, the first say enough.

type verdict struct {
	Verdict    string   `json:"verdict"`
	Operations int      `json:"operations"`
	Groups     int      `json:"groups"`
	Complaints []string `json:"complaints"`
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "for each group of keys")
	pictures := flag.String("pictures", "", "folder for a picture, in HTML, of each group that is not linearizable")
	flag.BoolVar(&sharedRevisions, "shared-revisions", false,
		"change sets that were made at the same time and touch different keys may have one revision")
	flag.Parse()
	calls, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	said, _ := json.Marshal(judge(calls, *timeout, *pictures))
	fmt.Println(string(said))
}

func judge(calls []*call, timeout time.Duration, pictures string) verdict {
	groups := map[string][]*call{}
	for _, c := range calls {
		groups[c.Group] = append(groups[c.Group], c)
	}
	var names []string
	for name := range groups {
		names = append(names, name)
	}
	sort.Strings(names)
	result := verdict{Verdict: "legal", Operations: len(calls), Groups: len(groups), Complaints: risingRevisions(calls)}
	if len(result.Complaints) > 0 {
		result.Verdict = "illegal"
	}
	verdicts := make([]string, len(names))
	complaints := make([][]string, len(names))
	next := make(chan int)
	var workers sync.WaitGroup
	for n := 0; n < runtime.NumCPU(); n++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for i := range next {
				verdicts[i], complaints[i] = judgeGroup(names[i], groups[names[i]], timeout, pictures)
			}
		}()
	}
	for i := range names {
		next <- i
	}
	close(next)
	workers.Wait()
	for i := range names {
		result.Complaints = append(result.Complaints, complaints[i]...)
		if verdicts[i] == "illegal" || verdicts[i] == "undecided" && result.Verdict == "legal" {
			result.Verdict = verdicts[i]
		}
	}
	return result
}

func judgeGroup(name string, calls []*call, timeout time.Duration, pictures string) (string, []string) {
	kept, unseen, complaints := resolve(calls)
	if len(complaints) > 0 {
		return "illegal", complaints
	}
	// That none of the unseen ones took effect is quickly judged, and mostly explains everything.
	history := operations(kept)
	result := porcupine.CheckOperationsTimeout(model(), history, timeout)
	if result == porcupine.Illegal && len(unseen) > 0 {
		kept = append(kept, unseen...)
		history = operations(kept)
		result = porcupine.CheckOperationsTimeout(model(), history, timeout)
	}
	switch result {
	case porcupine.Ok:
		return "legal", nil
	case porcupine.Unknown:
		return "undecided", []string{fmt.Sprintf("%s: undecided after %v", name, timeout)}
	}
	// Only what is not linearizable is worth the room that its explanation takes.
	_, info := porcupine.CheckOperationsVerbose(model(), history, timeout)
	if pictures != "" {
		path := filepath.Join(pictures, url.PathEscape(name)+".html")
		if err := porcupine.VisualizePath(model(), info, path); err != nil {
			complaints = append(complaints, err.Error())
		}
	}
	complaints = append(complaints, fmt.Sprintf("%s: no order of its %d calls explains their answers", name, len(kept)))
	return "illegal", append(complaints, stuck(kept, info)...)
}

func operations(calls []*call) []porcupine.Operation {
	history := make([]porcupine.Operation, len(calls))
	for i, c := range calls {
		history[i] = porcupine.Operation{ClientId: c.Client, Input: c, Call: c.Invoked, Return: math.MaxInt64}
		if c.Returned != nil {
			history[i].Return = *c.Returned
		}
	}
	return history
}

func model() porcupine.Model {
	return porcupine.Model{
		Init:              func() interface{} { return &state{} },
		Step:              func(s, input, _ interface{}) (bool, interface{}) { return s.(*state).step(input.(*call)) },
		Equal:             func(a, b interface{}) bool { return equal(a.(*state), b.(*state)) },
		Hash:              func(s interface{}) uint64 { return s.(*state).hash() },
		DescribeOperation: func(input, _ interface{}) string { return describe(input.(*call)) },
	}
}

// stuck names the calls that were answered first of those that fit into no order that explains as many as can be.
func stuck(calls []*call, info porcupine.LinearizationInfo) []string {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	explained := map[*call]bool{}
	for _, operation := range longest {
		explained[operation.Input.(*call)] = true
	}
	var left []*call
	for _, c := range calls {
		if !explained[c] && c.Returned != nil {
			left = append(left, c)
		}
	}
	sort.Slice(left, func(a, b int) bool { return *left[a].Returned < *left[b].Returned })
	var named []string
	for i := 0; i < len(left) && i < stuckMax; i++ {
		named = append(named, describe(left[i]))
	}
	return named
}

func describe(c *call) string {
	told, _ := json.Marshal(c)
	return string(told)
}

// risingRevisions looks at all groups together: a change set that began after another had been answered has a higher
// revision, and no two have the same.
func risingRevisions(calls []*call) []string {
	var complaints []string
	var begun, answered []*call
	for _, c := range calls {
		if c.Kind == "commit" && c.Outcome == "ok" && c.writes() {
			begun, answered = append(begun, c), append(answered, c)
		}
	}
	sort.Slice(begun, func(a, b int) bool { return begun[a].Invoked < begun[b].Invoked })
	sort.Slice(answered, func(a, b int) bool { return *answered[a].Returned < *answered[b].Returned })
	owners := map[int64]*call{}
	highest, i := int64(0), 0
	for _, c := range begun {
		for ; i < len(answered) && *answered[i].Returned < c.Invoked; i++ {
			if answered[i].Revision > highest {
				highest = answered[i].Revision
			}
		}
		if c.Revision <= highest {
			complaints = append(complaints, fmt.Sprintf("revision %d was given after %d was answered", c.Revision, highest))
		}
		if other := owners[c.Revision]; other != nil && !sharedRevisions {
			complaints = append(complaints, fmt.Sprintf("revision %d was given to %s and %s", c.Revision, describe(other), describe(c)))
		}
		owners[c.Revision] = c
	}
	return complaints
}

// writes says whether a change set surely changed something.
func (c *call) writes() bool {
	for _, o := range c.Ops {
		if o.Kind == "put" || o.Kind == "sequential" {
			return true
		}
	}
	return false
}
