// Package quotatest has a quotad cluster of one node for tests of programs that use quotad: the real state machine and API, in the
// test's own process, with a clock that the test controls.
//
// [New] starts one with some quotas, and [Cluster.Client] connects a client to it:
//
//	cluster := quotatest.New(t, quotatest.Rate("openai/requests", 60, time.Minute))
//	c := cluster.Client(client.WithHolder("picard"))
//
// # Time
//
// The cluster's clock stands still until the test advances it, so that a test has the same result on any machine. [Clock.Advance]
// advances it and carries out everything that becomes due, in order: leases end, rates refill, cooldowns end, waiting requests are
// granted. Clients use the process's own clock: after Advance, a lease of 5 minutes still has 5 minutes in the client, while the
// cluster has ended it. Its next command then fails with [client.ReasonStaleFence], as for a program that was stopped for that long.
//
// [Clock.Run] lets the cluster's clock run with real time. In a bubble of testing/synctest that is the bubble's time: the client's
// timers, the cluster and the program under test then share one virtual clock, and an hour takes a moment.
//
// # Limits
//
// There are no elections, followers or networks here, so no call gets an unknown outcome on its own. Test a program that must
// survive these against three nodes.
package quotatest
