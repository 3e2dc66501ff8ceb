package main

import (
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	tests := []struct {
		name   string
		stream string
		checks []string
		ok     bool
		last   string
		shows  []string
	}{
		{
			name: "sub-tests are part of their test",
			stream: `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA/x","Elapsed":0}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"pass","Package":"p","Elapsed":0.1}
`,
			ok: true, last: "1 passed, 0 failed", shows: []string{"1 skipped", "ok    p"},
		},
		{
			name: "a failed test shows what it said, a passed one does not",
			stream: `{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"seed 7\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
`,
			last: "1 passed, 1 failed", shows: []string{"seed 7", "FAIL  p"},
		},
		{
			name: "a package that does not build",
			stream: `{"ImportPath":"p [p.test]","Action":"build-output","Output":"undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"start","Package":"p"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p [p.test]"}
{"Action":"pass","Package":"q","Test":"TestA"}
{"Action":"pass","Package":"q"}
`,
			last: "1 passed, 1 failed", shows: []string{"undefined: x"},
		},
		{
			name: "a crash leaves a test without an end",
			stream: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: boom\n"}
{"Action":"fail","Package":"p"}
`,
			last: "0 passed, 1 failed", shows: []string{"panic: boom"},
		},
		{
			name: "a stream that was cut off",
			stream: `{"Action":"start","Package":"p"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Pack`,
			last: "1 passed, 1 failed", shows: []string{"p  never ended"},
		},
		{
			name:   "a check that failed before",
			stream: `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" + `{"Action":"pass","Package":"p"}` + "\n",
			checks: []string{"make lint"},
			last:   "1 passed, 1 failed", shows: []string{"FAIL  make lint"},
		},
		{name: "nothing ran", stream: "make: nothing\n", last: "0 passed, 1 failed", shows: []string{"make: nothing"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			ok, err := run(strings.NewReader(test.stream), &out, test.checks)
			if err != nil {
				t.Fatal(err)
			}
			if ok != test.ok {
				t.Errorf("ok = %v, want %v", ok, test.ok)
			}
			if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); lines[len(lines)-1] != test.last {
				t.Errorf("last line %q, want %q", lines[len(lines)-1], test.last)
			}
			for _, text := range test.shows {
				if !strings.Contains(out.String(), text) {
					t.Errorf("%q is missing in:\n%s", text, out.String())
				}
			}
			if strings.Contains(out.String(), "quiet") {
				t.Errorf("shows what a passed test said:\n%s", out.String())
			}
		})
	}
}
