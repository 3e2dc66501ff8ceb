// Package jsonscan reads JSON as it passes, in memory that does not grow with the document.
//
// A [Scanner] is an io.Writer: it receives the bytes of a document in pieces of any size and calls a [Handler] for their content,
// strings piece by piece. It never fails: from the first byte that is not JSON it is broken and only counts bytes. Decoders of the
// standard library hold each string in memory as a whole, and a prompt can contain an image of many megabytes.
package jsonscan
