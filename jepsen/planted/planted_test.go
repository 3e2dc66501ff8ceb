package planted

import (
	"testing"
)

// TestEveryDefectFitsItsPlace: an edit that the code has outgrown fails here, and not in the night.
func TestEveryDefectFitsItsPlace(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 12 {
		t.Errorf("there are %d defects", len(all))
	}
	for _, defect := range all {
		if _, err := defect.Overlay("../..", t.TempDir()); err != nil {
			t.Error(err)
		}
	}
}

func TestADefectThatDoesNotFitIsAnError(t *testing.T) {
	for name, text := range map[string]string{
		"nowhere":   "about: a\ncaught: b\nmix: c\nlength: 1s\n-- go.mod --\n<<<<\nno such line\n====\n>>>>\n",
		"no file":   "about: a\ncaught: b\nmix: c\nlength: 1s\n-- no.go --\n<<<<\na\n====\n>>>>\n",
		"no block":  "about: a\ncaught: b\nmix: c\nlength: 1s\n-- go.mod --\nmodule\n",
		"no run":    "about: a\ncaught: b\n-- go.mod --\n<<<<\nmodule\n====\n>>>>\n",
		"no number": "about: a\ncaught: b\nseeds: c\n-- go.mod --\n<<<<\nmodule\n====\n>>>>\n",
		"no caught": "about: a\nmix: c\nlength: 1s\n-- go.mod --\n<<<<\nmodule\n====\n>>>>\n",
		"no key":    "abuot: a\n",
	} {
		defect, err := parse(name, []byte(text))
		if err == nil {
			_, err = defect.Overlay("../..", t.TempDir())
		}
		if err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
