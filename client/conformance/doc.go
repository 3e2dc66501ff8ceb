// Command conformance tests a client of quotad, in any language: whether it keeps the rules that make requests exactly-once, outcomes
// distinct and deadlines safe.
//
// It starts three real nodes in its own process, each behind a proxy that records requests and loses or delays answers. It drives the
// client under test: any program that answers one JSON command per line. README.md documents that protocol.
//
//	go run ./client/conformance                      # the Go client
//	go run ./client/conformance python3 driver.py    # another one
//	go run ./client/conformance -list                # the rules
package main
