"""Calls of Python's clients: as PyGithub makes them of an Enterprise server, and a chat."""

import os

import httpx
import requests

session = requests.Session()
session.headers.update({"Authorization": "token ghp_made_up", "User-Agent": "PyGithub/Python"})
answer = session.get(os.environ["GITHUB_API_URL"] + os.environ["ENTERPRISE"] + "/user/repos", params={"per_page": 1})
print(answer.status_code, answer.text)

with httpx.Client(timeout=60) as client:
    answer = client.post(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        headers={"Authorization": "Bearer sk-made-up"},
        json={"model": "gpt-5", "messages": [{"role": "user", "content": "Hello"}]},
    )
    print(answer.status_code, answer.text)
