// Package jsonscan reads JSON as it passes, in memory that does not grow with the document.
//
// A [Scanner] is an io.Writer: it is given the bytes of a document in pieces of any size and tells a [Handler] what they mean, a
// piece of a string at a time. It never fails. From the first byte that is not JSON it is broken and only counts bytes.
// Decoders of the standard library hold each string in memory as a whole, and a prompt can carry a picture of many megabytes.
package jsonscan
