"""Makes the calls of one agent of the demo, with nothing but Python's standard library.

It reads a call from each line of its input, makes it at the base URL that it was given, and writes a line with the answer's
status and headers. Several calls are made at once. It ends with its input.
"""

import http.client
import json
import queue
import sys
import threading
import urllib.parse

base = urllib.parse.urlsplit(sys.argv[1])
idle = queue.LifoQueue()
writing = threading.Lock()


def make(call):
    try:
        connection = idle.get_nowait()
    except queue.Empty:
        connection = http.client.HTTPConnection(base.hostname, base.port)
    answer = {"id": call["id"]}
    try:
        connection.request(call["method"], call["path"], call["body"].encode() or None, call["header"])
        response = connection.getresponse()
        response.read()
        answer["status"] = response.status
        answer["header"] = {name: [value] for name, value in response.getheaders()}
        idle.put(connection)
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        answer["error"] = repr(error)
    with writing:
        print(json.dumps(answer), flush=True)


for line in sys.stdin:
    threading.Thread(target=make, args=(json.loads(line),), daemon=True).start()
