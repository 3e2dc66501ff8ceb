package levels_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/quotad/quotad/fsm/levels"
)

// TestLevels_AreAmongTheKnownVersions holds that each change of meaning comes after the oldest version that is applied, and that the
// newest one is no version without a change.
func TestLevels_AreAmongTheKnownVersions(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "levels.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	highest, changes := 0, 0
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name == "Oldest" || spec.Names[0].Name == "Newest" {
			return true
		}
		value, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			t.Fatalf("%s has no number", spec.Names[0].Name)
		}
		level, err := strconv.Atoi(value.Value)
		if err != nil || level <= levels.Oldest || level > levels.Newest {
			t.Errorf("%s is at level %s (%v), outside of %d to %d", spec.Names[0].Name, value.Value, err, levels.Oldest+1, levels.Newest)
		}
		highest = max(highest, level)
		changes++
		return true
	})
	if changes == 0 || highest != levels.Newest {
		t.Errorf("of %d changes the highest level is %d, want %d", changes, highest, levels.Newest)
	}
}
