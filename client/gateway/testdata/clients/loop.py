"""Makes call after call until a time (UNTIL, in Unix seconds), and prints what became of each."""

import os
import time
import urllib.request

call = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    b'{"model": "gpt-5", "messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 50}',
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
while time.time() < float(os.environ["UNTIL"]):
    try:
        with urllib.request.urlopen(call, timeout=120) as answer:
            answer.read()
        print("ok", flush=True)
    except OSError as error:
        print(f"lost {error}", flush=True)
