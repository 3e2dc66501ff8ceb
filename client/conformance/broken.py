"""The Python client with one defect, for tests of the conformance kit: python3 broken.py DEFECT."""

import sys
import time

import driver


class SendsNoIDs(driver.Client):
    def numbered(self, method, bodies, build, until, wait=0.0):
        return self.attempt(method, build(bodies), until, wait)


class ForgetsAckedBelow(driver.Client):
    def identify(self, session, seq):
        return {"session": session.id, "seq": seq}


class RetriesWithANewID(driver.Client):
    def renumber(self, session, seqs):
        with self.lock:
            for seq in seqs:
                session.finish(seq)
            return session, [session.number() for _ in seqs]


class RepeatsRefusals(driver.Client):
    def reserve(self, items, ttl, wait=0.0, consume=False, within=10.0):
        for _ in range(3):
            try:
                return super().reserve(items, ttl, wait, consume, within)
            except driver.Failure as failure:
                refusal = failure
                if failure.outcome != "refused":
                    raise
        raise refusal


class MixesPositions(driver.Client):
    def batch(self, commands, within=10.0):
        results = super().batch(commands, within)
        return [r for r in results if not isinstance(r, driver.Failure)] + [r for r in results if isinstance(r, driver.Failure)]


class CallsUnknownNotAccepted(driver.Client):
    @staticmethod
    def given_up(failure, doubt):
        return driver.Failure("not_accepted", failure.reason, str(failure))


class RepeatsInANewSession(driver.Client):
    def lost(self, failure, method, bodies, build, until, wait):
        return self.numbered(method, bodies, build, until, wait)


class IgnoresServedIn(driver.Client):
    def served(self, meta):
        return 0.0


class CountsFromTheAnswer(driver.Client):
    def deadline(self, sent, meta, left):
        return time.monotonic() + driver.seconds(left)


DEFECTS = {
    "sends-no-ids": SendsNoIDs,
    "forgets-acked-below": ForgetsAckedBelow,
    "retries-with-a-new-id": RetriesWithANewID,
    "repeats-refusals": RepeatsRefusals,
    "mixes-positions": MixesPositions,
    "calls-unknown-not-accepted": CallsUnknownNotAccepted,
    "repeats-in-a-new-session": RepeatsInANewSession,
    "ignores-served-in": IgnoresServedIn,
    "counts-from-the-answer": CountsFromTheAnswer,
}

if __name__ == "__main__":
    driver.serve(driver.Driver(DEFECTS[sys.argv[1]]))
