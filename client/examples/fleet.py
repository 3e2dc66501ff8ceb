"""Nine agents share one API key through quotad, in Python's standard library.

The provider allows 300 requests and 60,000 tokens in any minute, and answers 429 beyond. Before each call an agent reserves
one request and the call's tokens, so that the fleet meets no 429 while quotad's nodes crash and return. Copy Quotad; the
rest shows its use.

    quotad quota apply -f client/examples/fleet.yaml
    python3 client/examples/fleet.py --nodes 127.0.0.1:7450,127.0.0.1:7460,127.0.0.1:7470 --provider http://127.0.0.1:8080

Each call prints a line of JSON.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse


class Refused(Exception):
    """The cluster refuses. Ask again after retry_after seconds; None: never."""

    def __init__(self, refusal):
        super().__init__(f"{refusal['reason']} of {refusal['quota']}: {refusal['advice']}")
        self.retry_after = seconds(refusal["retryAfter"]) if "retryAfter" in refusal else None


class Rejected(Exception):
    """The request is wrong. Sending it again does not help."""

    def __init__(self, error):
        super().__init__(f"{error['reason']}: {error.get('hint', '')}")
        self.reason = error["reason"]


class Lease:
    """Amounts that are consumed: the provider's call may begin until the moment begin_by of this process's clock."""

    def __init__(self, id, fence, begin_by):
        self.id, self.fence, self.begin_by = id, fence, begin_by

    def in_time(self):
        return time.monotonic() < self.begin_by


class Quotad:
    """One holder's client of a cluster. It has one request in flight: each thread needs its own."""

    attempt = 10.0  # seconds after which the request is asked for at the next node

    def __init__(self, nodes, holder):
        self.nodes, self.holder = list(nodes), holder
        self.session, self.seq = None, 0
        random.shuffle(self.nodes)  # any node takes any call: spread the fleet over them

    def reserve(self, amounts, wait=60.0):
        """Wait in the queue for the amounts, {quota: n}, and consume them: all or none."""
        body = {
            "holder": self.holder,
            "items": [{"quota": quota, "amount": n} for quota, n in amounts.items()],
            "ttl": "60s",
            "wait": f"{wait}s",
            "consume": True,  # the call follows at once, and one commit does both
        }
        answer, sent = self.once("Reserve", body, wait + 30)
        if "refusal" in answer:
            raise Refused(answer["refusal"])
        lease, operation = answer["lease"], answer["lease"]["operation"]
        # Answers have durations, since clocks differ. Counting from before the request was sent errs on the safe side, and
        # transit is the time that the call needs to reach the provider.
        left = seconds(answer["meta"]["servedIn"]) + seconds(operation["spendIn"]) - seconds(operation["transit"])
        return Lease(lease["id"], lease["fence"], sent + left)

    def settle(self, lease, **used):
        """End the call's exposure: actual is what it used, {quota: n}; unspent is what it did not spend."""
        body = {"final": True, "release": True}
        for field, amounts in used.items():
            body[field] = [{"quota": quota, "amount": n} for quota, n in amounts.items()]
        self.about(lease, "Settle", body)

    def report(self, lease, status, headers, text):
        """Report what the provider answered, as it came: one 429 then protects the fleet."""
        self.about(lease, "Report", {"answer": {"status": status, "headers": headers, "body": text[:32768]}})

    def about(self, lease, method, body):
        try:
            self.once(method, {"lease": lease.id, "fence": lease.fence, "op": 1, **body}, 30)
        except TimeoutError:
            pass  # without a cluster what was reserved counts as used: too much, never too little
        except Rejected as rejected:
            if rejected.reason not in ("REASON_STALE_FENCE", "REASON_PAST_SPEND_BY"):  # too late: this process stood still
                raise

    def once(self, method, body, within):
        """Ask under a number of the session, which makes all repetitions one request."""
        while True:
            if self.session is None:
                self.session, self.seq = self.ask("OpenSession", {"holder": self.holder}, within)[0]["session"], 0
            self.seq += 1
            body["requestId"] = {"session": self.session, "seq": self.seq, "ackedBelow": self.seq}
            try:
                return self.ask(method, body, within)
            except Rejected as rejected:
                # Unused for an hour. If a Reserve was granted before, that counts as used.
                if rejected.reason != "REASON_UNKNOWN_SESSION":
                    raise
                self.session = None

    def ask(self, method, body, within):
        """Send the same body to one node after the other until one answers. Return the answer, and when it was asked for."""
        until = time.monotonic() + within
        while True:
            sent = time.monotonic()
            try:
                status, answer = self.post(method, body, min(self.attempt, until - sent))
                if status == 200:
                    return answer, sent
                # 429 and 5xx are the node's own trouble: no leader, no room, a forwarded call without an answer.
                if status != 429 and status < 500:
                    raise Rejected(answer["error"])
                problem = answer["error"]["reason"]
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = repr(error)  # whether the node carried it out is unknown, and a repetition finds out
            pause = random.uniform(0.02, 0.1)
            if time.monotonic() + pause >= until:
                raise TimeoutError(f"{method}: no node answers: {problem}")
            time.sleep(pause)
            self.nodes.append(self.nodes.pop(0))

    def post(self, method, body, timeout):
        connection = http.client.HTTPConnection(self.nodes[0], timeout=timeout)
        try:
            path = "/quota.v1.QuotaService/" + method
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


def seconds(duration):
    """Read a duration such as "29.5s"."""
    return float(duration.removesuffix("s"))


REQUESTS, TOKENS = "openai/gpt-5/requests", "openai/gpt-5/tokens"


class Agent(threading.Thread):
    """Calls the provider without pause."""

    def __init__(self, holder, options):
        super().__init__(daemon=True)
        self.holder, self.options, self.calls = holder, options, 0
        self.random = random.Random(f"{options.seed} {holder}")
        self.quotad = Quotad(options.nodes.split(","), holder)

    def run(self):
        least = self.options.largest // 24
        while True:
            tokens = int(self.random.triangular(least, self.options.largest, least))  # more small calls than large ones
            asked = time.time()
            lease = self.wait_for({REQUESTS: 1, TOKENS: tokens})
            granted, status = time.time(), 0
            self.calls += 1
            if lease.in_time():
                status = self.call(lease, tokens)
            else:  # this process stood still: at the provider the call would count when its amounts no longer count here
                self.quotad.settle(lease, unspent={REQUESTS: 1, TOKENS: tokens})
            line = {"holder": self.holder, "call": self.calls, "asked": asked, "granted": granted, "tokens": tokens, "status": status}
            sys.stdout.write(json.dumps(line) + "\n")  # in one piece: print would write the newline apart from it
            sys.stdout.flush()

    def wait_for(self, amounts):
        while True:
            try:
                return self.quotad.reserve(amounts)
            except Refused as refused:
                if refused.retry_after is None:
                    raise
                time.sleep(refused.retry_after)
            except TimeoutError as error:
                print(error, file=sys.stderr)

    def call(self, lease, tokens):
        """Make the call that was reserved, and settle it. Return the provider's status; 0: it did not answer."""
        prompt = {"model": "gpt-5", "max_tokens": tokens, "messages": [{"role": "user", "content": "Hello."}]}
        try:
            status, headers, text = self.post(prompt)
        except (OSError, http.client.HTTPException):
            status, headers, text = 0, {}, ""  # it may have been counted, so the estimate stays
        if status == 429:
            self.quotad.report(lease, status, headers, text)
        usage = json.loads(text)["usage"] if status == 200 else {}
        # What was used: with settle: actual what is left of the estimate returns, with settle: max the estimate stays.
        self.quotad.settle(lease, actual={TOKENS: usage["total_tokens"]} if usage else {})
        return status

    def post(self, prompt):
        url = urllib.parse.urlsplit(self.options.provider)
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        headers = {
            "Authorization": "Bearer " + self.options.key,
            "Content-Type": "application/json",
            "X-Holder": self.holder,
            "X-Call-Id": f"{self.holder}/{self.calls}",
        }
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(prompt), headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", default="127.0.0.1:7450", help="addresses of quotad's nodes, separated by commas")
    parser.add_argument("--provider", required=True, help="URL of the provider")
    parser.add_argument("--key", default="sk-test", help="the API key that all agents share")
    parser.add_argument("--seconds", type=float, default=300, help="how long to run")
    parser.add_argument("--largest", type=int, default=1200, help="tokens of the largest call")
    parser.add_argument("--seed", type=int, default=1, help="seed of the calls' sizes")
    options = parser.parse_args()
    fleet = {"critical": 2, "standard": 5, "background": 2}
    agents = [Agent(f"{kind}-{i + 1}", options) for kind, count in fleet.items() for i in range(count)]
    for agent in agents:
        agent.start()
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        if not all(agent.is_alive() for agent in agents):
            sys.exit("an agent failed")


if __name__ == "__main__":
    main()
