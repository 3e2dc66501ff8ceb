package gateway

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestRenamedBody_ChangesTheModelAlone(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"gpt-5","input":"x"}`:                                   `{"model":"mini","input":"x"}`,
		"{ \"input\" : {\"model\":\"gpt-5\"},\n \"model\" :\t\"gpt-5\" }": "{ \"input\" : {\"model\":\"gpt-5\"},\n \"model\" :\t\"mini\" }",
		`{"model":"gpt-5","a":1.0e5,"model":"gpt-5"}`:                     `{"model":"mini","a":1.0e5,"model":"mini"}`,
		`{"mod\u0065l":"gpt-5"}`:                                          `{"mod\u0065l":"mini"}`,
	} {
		if got, ok := renamedBody([]byte(body), "mini"); !ok || string(got) != want {
			t.Errorf("%s becomes %s, %v, want %s", body, got, ok, want)
		}
	}
	for _, body := range []string{"", "[]", `{"input":"x"}`, `{"model":"gpt-5"`, `{"model"`, "model", `{"model":"gpt-5",}`} {
		if got, ok := renamedBody([]byte(body), "mini"); ok {
			t.Errorf("%s becomes %s", body, got)
		}
	}
}

func TestRenamedPath_ChangesTheModelAlone(t *testing.T) {
	for path, want := range map[string]string{
		"/v1beta/models/gemini-2.5-pro:streamGenerateContent": "/v1beta/models/a%2Fb:streamGenerateContent",
		"/openai/deployments/d/chat/completions":              "/openai/deployments/a%2Fb/chat/completions",
		"/model/us.anthropic.claude-v1:0/converse":            "/model/a%2Fb/converse",
		"/v1/responses": "",
		"/model/":       "",
	} {
		if got, ok := renamedPath(path, "a/b"); got != want || ok != (want != "") {
			t.Errorf("%s becomes %s, %v, want %s", path, got, ok, want)
		}
	}
}

func FuzzRenamedBody(f *testing.F) {
	f.Add([]byte(`{"model":"gpt-5","input":[{"model":"x"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		out, ok := renamedBody(body, "mini")
		if !ok {
			return
		}
		var before, after map[string]any
		if json.Unmarshal(body, &before) != nil {
			return // data after the object is not checked
		}
		if err := json.Unmarshal(out, &after); err != nil || after["model"] != "mini" {
			t.Fatalf("%q becomes %q: %v", body, out, err)
		}
		before["model"] = "mini"
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("%q becomes %q", body, out)
		}
	})
}
