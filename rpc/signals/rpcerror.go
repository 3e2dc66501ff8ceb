package signals

import (
	"encoding/base64"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// rpcError is an error of a gRPC service as JSON: google.rpc.Status, which Google's APIs put under "error" and grpc-gateway does not, or
// an error of Connect, whose details are encoded.
type rpcError struct {
	// Code is a number, or a word with Connect.
	Code    any         `json:"code"`
	Status  string      `json:"status"`
	Message string      `json:"message"`
	Details []rpcDetail `json:"details"`
}

// rpcDetail is one detail: its type, and the fields of RetryInfo, ErrorInfo and QuotaFailure.
type rpcDetail struct {
	AtType     string            `json:"@type"`
	RetryDelay string            `json:"retryDelay"`
	Reason     string            `json:"reason"`
	Metadata   map[string]string `json:"metadata"`
	Violations []struct {
		QuotaID    string `json:"quotaId"`
		QuotaValue string `json:"quotaValue"`
	} `json:"violations"`
	// Type and Value are Connect's: the message's name, and its bytes in base64.
	Type  string `json:"type"`
	Value string `json:"value"`
}

const (
	typeRetryInfo = "google.rpc.RetryInfo"
	typeErrorInfo = "google.rpc.ErrorInfo"
	// typeOurs is the detail of quotad's own errors.
	typeOurs = "quota.v1.ErrorInfo"
)

// reason returns the reason of an ErrorInfo; empty if there is none.
func (e rpcError) reason() string {
	for _, detail := range e.Details {
		if strings.HasSuffix(detail.AtType, typeErrorInfo) {
			return detail.Reason
		}
	}
	return ""
}

// retryDelay returns the wait in a detail.
func (e rpcError) retryDelay() wait {
	for _, detail := range e.Details {
		switch {
		case strings.HasSuffix(detail.AtType, typeRetryInfo):
			if d, ok := protoJSONDuration(detail.RetryDelay); ok {
				return waitFor(d)
			}
		case detail.Type == typeRetryInfo:
			if d, ok := durationIn(decodeBase64(detail.Value), 1); ok {
				return waitFor(d)
			}
		}
	}
	for _, detail := range e.Details {
		if d, ok := spoken(detail.Metadata["quotaResetDelay"]); ok {
			return waitFor(d)
		}
	}
	return wait{}
}

// ours returns the quota and the wait in an error of another quotad.
func (e rpcError) ours() (quota string, asked wait, ok bool) {
	for _, detail := range e.Details {
		if detail.Type != typeOurs {
			continue
		}
		raw := decodeBase64(detail.Value)
		if d, ok := durationIn(raw, 8); ok {
			asked = waitFor(d)
		}
		name, _ := bytesIn(raw, 3)
		return word(string(name)), asked, true
	}
	return "", wait{}, false
}

// trailerDelay returns the wait in grpc-status-details-bin, a google.rpc.Status whose details are of any type.
func (r *response) trailerDelay() (asked wait) {
	eachField(decodeBase64(r.header.Get("Grpc-Status-Details-Bin")), func(number protowire.Number, kind protowire.Type, raw []byte) {
		if number != 3 || kind != protowire.BytesType {
			return
		}
		detail, _ := protowire.ConsumeBytes(raw)
		name, _ := bytesIn(detail, 1)
		value, _ := bytesIn(detail, 2)
		if d, ok := durationIn(value, 1); ok && strings.HasSuffix(string(name), typeRetryInfo) {
			asked = waitFor(d)
		}
	})
	return asked
}

// protoJSONDuration reads a duration in the form of protobuf's JSON: seconds with up to nine decimals, and an s.
func protoJSONDuration(value string) (time.Duration, bool) {
	number, ok := strings.CutSuffix(value, "s")
	d, readable := seconds(number)
	return d, ok && readable
}

// decodeBase64 accepts base64 with or without padding, in either alphabet. It returns nil for other values.
func decodeBase64(value string) []byte {
	value = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(value), "=")
	raw, err := base64.RawStdEncoding.DecodeString(value)
	if err != nil {
		return nil
	}
	return raw
}

// durationIn reads a field of a message that is a google.protobuf.Duration.
func durationIn(message []byte, field protowire.Number) (time.Duration, bool) {
	raw, ok := bytesIn(message, field)
	if !ok {
		return 0, false
	}
	whole, okSeconds := numberIn(raw, 1)
	nanos, okNanos := numberIn(raw, 2)
	if !okSeconds || !okNanos || nanos >= uint64(time.Second) || whole > uint64(maxSpan/time.Second) {
		return 0, false
	}
	return time.Duration(whole)*time.Second + time.Duration(nanos), true
}

// bytesIn returns a field of a message with a length; the last one counts.
func bytesIn(message []byte, field protowire.Number) (value []byte, found bool) {
	ok := eachField(message, func(number protowire.Number, kind protowire.Type, raw []byte) {
		if number == field && kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(raw)
			found = true
		}
	})
	return value, ok && found
}

// numberIn returns a numeric field of a message; 0 if it is left out. Negative ones are huge here.
func numberIn(message []byte, field protowire.Number) (value uint64, ok bool) {
	ok = eachField(message, func(number protowire.Number, kind protowire.Type, raw []byte) {
		if number == field && kind == protowire.VarintType {
			value, _ = protowire.ConsumeVarint(raw)
		}
	})
	return value, ok
}

// eachField visits the fields of a message. It returns false if the message is malformed.
func eachField(message []byte, visit func(protowire.Number, protowire.Type, []byte)) bool {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return false
		}
		visit(number, kind, message[:n])
		message = message[n:]
	}
	return true
}
