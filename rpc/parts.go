package rpc

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// tooManyParts tells whether an encoded message of a type has more than most parts: messages within it, and elements of lists.
func tooManyParts(data []byte, of protoreflect.MessageDescriptor, most int) bool {
	const shortest = 2 // bytes of a part: a tag and a length
	return len(data) > shortest*most && partsLeft(data, of, most) < 0
}

// partsLeft returns how many of left parts remain after those of a message; below 0 if they do not suffice.
func partsLeft(data []byte, of protoreflect.MessageDescriptor, left int) int {
	for len(data) > 0 && left >= 0 {
		number, wire, tag := protowire.ConsumeTag(data)
		if tag < 0 {
			return left // decoding reports what is wrong
		}
		size := protowire.ConsumeFieldValue(number, wire, data[tag:])
		if size < 0 {
			return left
		}
		value := data[tag : tag+size]
		data = data[tag+size:]
		field := of.Fields().ByNumber(number)
		if field == nil || !field.IsList() && !field.IsMap() && field.Message() == nil {
			continue
		}
		left--
		if content, ok := protowire.ConsumeBytes(value); field.Message() != nil && wire == protowire.BytesType && ok >= 0 {
			left = partsLeft(content, field.Message(), left)
		}
	}
	return left
}

// partsError says that a request has more than most parts.
func partsError(most int) error {
	return fmt.Errorf("the request has more than %d messages and list elements", most)
}
