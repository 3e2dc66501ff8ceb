// Makes the calls of one agent of the demo with the packages that agents in JavaScript use.
//
// It reads a call from each line of its input, makes it at the base URL that it was given, and writes a line with the answer's
// status and headers. Several calls are made at once. It ends with its input.

import {createInterface} from 'node:readline';
import {Octokit} from '@octokit/rest';
import OpenAI from 'openai';

const [base] = process.argv.slice(2);
const silent = () => {};
const octokit = new Octokit({baseUrl: `${base}/github`, log: {debug: silent, info: silent, warn: silent, error: silent}});

// The agent comes back by itself when it is refused, as it does in other languages.
const openai = (key) => new OpenAI({apiKey: key, baseURL: `${base}/openai/v1`, maxRetries: 0});

async function complete({body, header}) {
  const {Authorization: authorization, ...headers} = header;
  const {response} = await openai(authorization.replace('Bearer ', '')).chat.completions.create(JSON.parse(body), {headers}).withResponse();
  return response;
}

async function request({method, path, body, header}) {
  return octokit.request({method, url: path.replace('/github', ''), headers: header, ...(body && JSON.parse(body))});
}

// Both packages throw what is not a success, with the answer in it.
function answered(error) {
  const answer = error.response ?? error;
  if (!answer.headers) {
    throw error;
  }
  return answer;
}

async function make(call) {
  try {
    const {status, headers} = await (call.path.startsWith('/openai/') ? complete(call) : request(call)).catch(answered);
    const pairs = headers instanceof Headers ? [...headers] : Object.entries(headers);
    return {id: call.id, status, header: Object.fromEntries(pairs.map(([name, value]) => [name, [String(value)]]))};
  } catch (error) {
    return {id: call.id, error: String(error)};
  }
}

for await (const line of createInterface({input: process.stdin})) {
  make(JSON.parse(line)).then((answer) => console.log(JSON.stringify(answer)));
}
