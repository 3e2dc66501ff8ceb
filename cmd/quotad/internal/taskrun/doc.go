// Package taskrun runs an agent as a child process under its task's retry budget. It asks whether an attempt may begin,
// relays the child's streams and signals, reads the child's output, and reports the outcome to the cluster. This parent
// classifies the outcome, because an agent that is stuck at a limit does not know it.
package taskrun
