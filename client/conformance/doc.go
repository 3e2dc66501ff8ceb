// Command conformance tests a client of quotad, in any language: whether it keeps the rules by which requests are carried out once,
// outcomes are told apart and deadlines are safe.
//
// It starts three real nodes in its own process, each behind a proxy that records what passes and loses or delays answers, and drives
// the client under test: any program that answers one command a line of JSON. README.md documents that protocol.
//
//	go run ./client/conformance                      # the Go client
//	go run ./client/conformance python3 driver.py    # another one
//	go run ./client/conformance -list                # the rules
package main
