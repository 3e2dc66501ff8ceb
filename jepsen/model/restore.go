package model

import "github.com/quotad/quotad/fsm"

// Restored returns the judge of the log after a restore. It takes over the books of backup, which has judged the log up to the backup; j
// has judged it up to the restore. The entries in between are lost, which is the meaning of a restore. Three things no restore takes back:
// time, the cluster's ID, and the numbers of fences, leases, tickets and sessions, which continue above the earlier ones.
func (j *Judge) Restored(backup *Judge, epoch uint32) (next *Judge, broken *Violation) {
	next = backup
	if counter := uint64(epoch) << 48; counter <= max(j.lastFence, backup.lastFence) {
		broken = &Violation{
			Promise: promises["fence-order"], Name: "fence-order", Index: j.entry.index, Command: -1, Detail: "a restore does not raise the epoch",
		}
	}
	above := uint64(epoch) << 40
	next.lastFence = max(j.lastFence, backup.lastFence, uint64(epoch)<<48)
	next.lastLease = max(j.lastLease, backup.lastLease, above)
	next.lastTicket = max(j.lastTicket, backup.lastTicket, above)
	next.lastOpened = max(j.lastOpened, backup.lastOpened, above)
	next.clusterID = j.clusterID
	shift := backup.clock.Shift // each state counts its views with its own shift
	next.clock = fsm.Clock{
		Now: max(j.clock.Now, backup.clock.Now), WallEarly: max(plus(j.clock.WallEarly-j.clock.Shift, shift), backup.clock.WallEarly),
		WallLate: max(plus(j.clock.WallLate-j.clock.Shift, shift), backup.clock.WallLate), Shift: shift,
	}
	next.stats = j.stats
	next.stats.Restores++
	return next, broken
}
