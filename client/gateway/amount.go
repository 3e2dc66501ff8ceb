package gateway

import (
	"bytes"
	"encoding/json"
)

// amountOf returns what a call asks of a part; 0: the quota's default estimate.
func (c *call) amountOf(part string) int64 {
	switch part {
	case "requests", "requests-per-day", "streams":
		return 1
	}
	return 0
}

// modelIn returns the model that a body names.
func modelIn(data []byte) string {
	var asked struct {
		Model string `json:"model"`
	}
	_ = json.NewDecoder(bytes.NewReader(data)).Decode(&asked)
	return asked.Model
}
