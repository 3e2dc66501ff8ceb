// Package taskrun runs an agent as a child process under its task's retry budget: it asks whether an attempt may begin,
// passes the child's streams and signals through, reads along what the child says, and tells the cluster how it went. What
// became of the attempt is judged here, by the parent: an agent that is stuck at a limit is the last to know.
package taskrun
