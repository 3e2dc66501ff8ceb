"""A client of quotad in Python's standard library, and its driver for the conformance kit.

The client speaks plain JSON over HTTP. It numbers its requests in a session, sends a request whose answer was lost again
under its own id, tells the three outcomes apart, and keeps deadlines by served_in. Copy it: it has no dependencies.

The driver answers commands on standard input; README.md documents them. Run it by

    go run ./client/conformance python3 client/conformance/driver.py
"""

import http.client
import json
import sys
import threading
import time
import urllib.parse


class Failure(Exception):
    """What a command came to other than its result: outcome is refused, rejected, not_accepted or unknown."""

    def __init__(self, outcome, reason="", text="", quota="", retry_after=None):
        super().__init__(text or reason or outcome)
        self.outcome, self.reason, self.quota, self.retry_after = outcome, reason, quota, retry_after
        self.doubt = outcome == "unknown"  # an earlier attempt may have had an effect


def seconds(duration):
    """Read a duration such as "29.5s"."""
    return float((duration or "0s").removesuffix("s"))


def short(reason):
    """Name a reason without its prefix."""
    return (reason or "").removeprefix("REASON_")


class Node:
    """One node's API. Threads share it; each call has a connection of its own."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
        self.host, self.port = parts.hostname, parts.port

    def post(self, method, body, timeout):
        """Call a method. It raises ConnectionRefusedError only where nothing was sent."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.connect()
        except OSError as error:
            raise ConnectionRefusedError(str(error)) from error
        try:
            sent = time.monotonic()
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/quota.v1.QuotaService/" + method, json.dumps(body), headers)
            response = connection.getresponse()
            status, data = response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TimeoutError(f"no answer: {error}") from error
        finally:
            connection.close()
        return status, data, sent


class Session:
    """Numbers requests, and remembers below which number all are finished."""

    def __init__(self, session):
        self.id, self.next, self.open = session, 1, set()

    def number(self):
        seq, self.next = self.next, self.next + 1
        self.open.add(seq)
        return seq

    def acked_below(self):
        return min(self.open, default=self.next)

    def finish(self, seq):
        """The request is answered, or never sent again."""
        self.open.discard(seq)


class Client:
    """A holder's client of a cluster. Threads may share it."""

    each = 3.0  # seconds that one attempt may take, besides what it waits in the queue
    pause = 0.05

    def __init__(self, nodes, holder):
        self.nodes, self.holder = [Node(url) for url in nodes], holder
        self.lock, self.session, self.first = threading.Lock(), None, 0

    def attempt(self, method, body, until, wait=0.0):
        """Ask one node after the other once. It returns the answer, or raises the last Failure."""
        doubt, last = False, Failure("not_accepted", text="no node was asked")
        for i in range(len(self.nodes)):
            left = until - time.monotonic()
            if left <= 0:
                break
            index = (self.first + i) % len(self.nodes)
            try:
                status, data, sent = self.nodes[index].post(method, body, min(self.each + wait, left))
            except ConnectionRefusedError as error:
                last = Failure("not_accepted", text=str(error))
                continue
            except TimeoutError as error:
                doubt, last = True, Failure("unknown", text=str(error))
                continue
            if status == 200:
                self.first = index
                return data, sent
            last = self.failure(data)
            if last.outcome == "rejected":
                last.doubt = doubt
                raise last
            doubt = doubt or last.outcome == "unknown"
        raise Failure("unknown" if doubt else last.outcome, last.reason, str(last))

    @staticmethod
    def failure(data):
        """Say what an error's body means."""
        info = next((d.get("debug", {}) for d in data.get("details", []) if d.get("type") == "quota.v1.ErrorInfo"), {})
        return Client.classified(info, data.get("message", ""))

    @staticmethod
    def classified(info, text):
        reason = short(info.get("reason"))
        if info.get("notAccepted"):
            return Failure("not_accepted", reason, text)
        if reason in ("", "UNKNOWN_OUTCOME", "INTERNAL", "STOPPING", "CANCELED"):
            return Failure("unknown", reason, text)
        return Failure("rejected", reason, text, info.get("quota", ""))

    def in_session(self, until):
        """Return the session, opened where there is none. What becomes of a session whose answer is lost: it expires."""
        while True:
            with self.lock:
                if self.session:
                    return self.session
                try:
                    data, _ = self.attempt("OpenSession", {"holder": self.holder}, until)
                    self.session = Session(data["session"])
                    return self.session
                except Failure as failure:
                    if time.monotonic() + self.pause >= until:
                        raise Failure("not_accepted", failure.reason, str(failure)) from failure
            time.sleep(self.pause)

    def identify(self, session, seq):
        """Return the id under which a request is sent, each time it is."""
        with self.lock:
            return {"session": session.id, "seq": seq, "ackedBelow": session.acked_below()}

    def renumber(self, session, seqs):
        """Say under which session and numbers a request is sent again: always the same."""
        return session, seqs

    def numbered(self, method, bodies, build, until, wait=0.0):
        """Send requests under ids of their own until they are answered or time is up. build makes the call's body of them."""
        session = self.in_session(until)
        with self.lock:
            seqs = [session.number() for _ in bodies]
        doubt = False
        try:
            while True:
                for body, seq in zip(bodies, seqs):
                    body["requestId"] = self.identify(session, seq)
                try:
                    return self.attempt(method, build(bodies), until, wait)
                except Failure as failure:
                    doubt = doubt or failure.doubt
                    if failure.reason == "UNKNOWN_SESSION":
                        self.forget(session)
                        if doubt:
                            return self.lost(failure, method, bodies, build, until, wait)
                        return self.numbered(method, bodies, build, until, wait)
                    if failure.outcome == "rejected":
                        raise
                    if time.monotonic() + self.pause >= until:
                        raise self.given_up(failure, doubt) from failure
                time.sleep(self.pause)
                session, seqs = self.renumber(session, seqs)
        finally:
            with self.lock:
                for seq in seqs:
                    session.finish(seq)

    def lost(self, failure, method, bodies, build, until, wait):
        """The session is gone, and with it the answer of a request that may have been carried out."""
        raise Failure("unknown", failure.reason, str(failure))

    @staticmethod
    def given_up(failure, doubt):
        return Failure("unknown" if doubt else failure.outcome, failure.reason, str(failure))

    def forget(self, session):
        with self.lock:
            if self.session is session:
                self.session = None

    def reserve(self, items, ttl, wait=0.0, consume=False, within=10.0):
        """Reserve items, a list of (quota, amount). It returns a Lease."""
        body = self.reservation(items, ttl, wait, consume)
        data, sent = self.numbered("Reserve", [body], lambda bodies: bodies[0], time.monotonic() + within, wait)
        return self.granted(data, sent, data["meta"])

    def reservation(self, items, ttl, wait=0.0, consume=False):
        body = {"holder": self.holder, "items": [{"quota": q, "amount": n} for q, n in items], "ttl": f"{ttl}s"}
        if wait:
            body["wait"] = f"{wait}s"
        if consume:
            body["consume"] = True
        return body

    def granted(self, data, sent, meta):
        if "refusal" in data:
            refusal = data["refusal"]
            retry = seconds(refusal["retryAfter"]) if "retryAfter" in refusal else None
            raise Failure("refused", short(refusal["reason"]), refusal.get("advice", ""), refusal.get("quota", ""), retry)
        return Lease(data["lease"], self.deadline(sent, meta, data["lease"]["expiresIn"]))

    def deadline(self, sent, meta, left):
        """When something ends on this machine's monotonic clock, a little early: clocks run apart, and threads wait."""
        left = seconds(left)
        return sent + self.served(meta) + left - min(left / 100 + 0.05, left / 2)

    def served(self, meta):
        return seconds(meta.get("servedIn"))

    def about(self, method, lease, within=10.0, **more):
        """Consume, Renew or Release a lease."""
        body = {"lease": lease.id, "fence": lease.fence, **more}
        data, sent = self.numbered(method, [body], lambda bodies: bodies[0], time.monotonic() + within)
        if method == "Renew":
            lease.until = self.deadline(sent, data["meta"], data["expiresIn"])
        return data

    def batch(self, commands, within=10.0):
        """Send commands at once: (kind, body) each. It returns results or Failures by position."""
        kinds, bodies = [kind for kind, _ in commands], [body for _, body in commands]

        def build(numbered):
            return {"commands": [{kind: body} for kind, body in zip(kinds, numbered)]}

        data, sent = self.numbered("Batch", bodies, build, time.monotonic() + within)
        return [self.result(kind, result, sent, data["meta"]) for kind, result in zip(kinds, data["results"])]

    def result(self, kind, result, sent, meta):
        try:
            if "error" in result:
                raise self.classified(result["error"].get("info", {}), result["error"].get("message", ""))
            if kind == "reserve":
                return self.granted(result["reserve"], sent, meta)
        except Failure as failure:
            return failure
        return result[kind]


class Lease:
    """What the cluster granted, and until when it holds on this machine."""

    def __init__(self, data, until):
        self.id, self.fence, self.until = data["id"], data["fence"], until

    def left(self):
        return max(0.0, self.until - time.monotonic())


class Driver:
    """Answers the kit's commands."""

    def __init__(self, client=Client):
        self.make, self.client, self.leases = client, None, {}

    def do(self, command):
        """Carry a command out, and say what it came to."""
        try:
            return {"outcome": "applied", **(getattr(self, "do_" + command["do"])(command) or {})}
        except Failure as failure:
            return self.told(failure)

    @staticmethod
    def told(failure):
        answer = {"outcome": failure.outcome, "reason": failure.reason, "quota": failure.quota, "error": str(failure)}
        if failure.retry_after is not None:
            answer["retry_after_ms"] = round(failure.retry_after * 1000)
        return answer

    def keep(self, lease):
        self.leases[lease.id] = lease
        return {"lease": lease.id, "left_ms": int(lease.left() * 1000)}

    @staticmethod
    def within(command):
        return command.get("within_ms", 10_000) / 1000

    @staticmethod
    def asked(command):
        return [(item["quota"], item["amount"]) for item in command["items"]], command.get("ttl_ms", 300_000) / 1000

    def do_connect(self, command):
        self.client = self.make(command["nodes"], command["holder"])

    def do_reserve(self, command):
        wait = command.get("wait_ms", 0) / 1000
        return self.keep(self.client.reserve(*self.asked(command), wait, command.get("consume", False), self.within(command)))

    def do_consume(self, command):
        self.client.about("Consume", self.leases[command["lease"]], self.within(command), op=1)

    def do_renew(self, command):
        self.client.about("Renew", self.leases[command["lease"]], self.within(command), ttl=f"{command['ttl_ms'] / 1000}s")

    def do_release(self, command):
        self.client.about("Release", self.leases[command["lease"]], self.within(command))

    def do_left(self, command):
        return {"left_ms": int(self.leases[command["lease"]].left() * 1000)}

    def do_batch(self, command):
        results = self.client.batch([self.in_batch(c) for c in command["commands"]], self.within(command))
        return {"results": [self.of_batch(result) for result in results]}

    def in_batch(self, command):
        if command["do"] == "reserve":
            return "reserve", self.client.reservation(*self.asked(command))
        lease = self.leases[command["lease"]]
        body = {"lease": lease.id, "fence": lease.fence}
        if command["do"] == "renew":
            body["ttl"] = f"{command['ttl_ms'] / 1000}s"
        return command["do"], body

    def of_batch(self, result):
        if isinstance(result, Failure):
            return self.told(result)
        if isinstance(result, Lease):
            return {"outcome": "applied", **self.keep(result)}
        return {"outcome": "applied"}


def serve(driver):
    """Answer commands, several at once, until there are no more."""
    writing = threading.Lock()

    def answer(command):
        line = json.dumps({**driver.do(command), "id": command["id"]})
        with writing:
            print(line, flush=True)

    threads = []
    for line in sys.stdin:
        thread = threading.Thread(target=answer, args=(json.loads(line),))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    serve(Driver())
