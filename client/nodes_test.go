package client

import (
	"fmt"
	"net/http"
	"testing"
)

// TestNodes_HintsAreBounded: hints of leaders add unknown nodes up to a bound. Known ones are found beyond it.
func TestNodes_HintsAreBounded(t *testing.T) {
	known, err := newNodes([]string{"127.0.0.1:1"}, "http", http.DefaultClient, "")
	if err != nil {
		t.Fatal(err)
	}
	added := 0
	for i := range 10 * maxNodes {
		if known.add(fmt.Sprintf("http://10.0.0.1:%d", i)) != nil {
			added++
		}
	}
	if added != maxNodes-1 || len(known.all) != maxNodes {
		t.Errorf("%d nodes were added, %d are known", added, len(known.all))
	}
	if found := known.add("http://10.0.0.1:0"); found == nil || found != known.all[1] {
		t.Errorf("a known node beyond the bound: %v", found)
	}
}
