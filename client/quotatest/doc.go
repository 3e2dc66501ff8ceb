// Package quotatest has a quotad cluster of one node for tests of programs that use it: the real state machine behind the real
// API, in the test's own process, with a clock that the test sets.
//
// [New] starts one with some quotas, and [Cluster.Client] connects a client to it:
//
//	cluster := quotatest.New(t, quotatest.Rate("openai/requests", 60, time.Minute))
//	c := cluster.Client(client.WithHolder("picard"))
//
// # Time
//
// The cluster's clock stands still until the test moves it, so that a test comes to the same result on any machine.
// [Clock.Advance] lets time pass and carries out everything that becomes due on the way, in order: leases end, rates refill,
// cooldowns end, waiting requests are granted. Clients measure by the process's own clock: a lease that lasted 5 minutes when it was
// granted still has 5 minutes in the client after Advance, while the cluster ended it. Its next command then fails with
// [client.ReasonStaleFence], as it does for a program that was stopped for that long.
//
// [Clock.Run] lets the cluster's clock run with time. In a bubble of testing/synctest that is the bubble's time: then the client's
// timers, the cluster and the program under test share one virtual clock, and an hour takes a moment.
//
// # What it is not
//
// There are no elections, followers or networks here, so no call meets an unknown outcome by itself. A program that has to
// survive these is tested against three nodes.
package quotatest
