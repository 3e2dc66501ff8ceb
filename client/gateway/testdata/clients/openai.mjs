// A chat, the bytes of its answer, a stream, and a model that has no quota.
import OpenAI from 'openai';

const client = new OpenAI({maxRetries: 2});
const say = (what) => console.log(JSON.stringify(what));
const messages = [{role: 'user', content: 'Hello'}];

say(await client.chat.completions.create({model: 'gpt-5', messages}));
say(await (await client.chat.completions.create({model: 'gpt-5', messages}).asResponse()).text());
for await (const chunk of await client.chat.completions.create({model: 'gpt-5', messages, stream: true})) {
  say(chunk);
}
try {
  say(await client.responses.create({model: 'gpt-none', input: 'Hello'}));
} catch (error) {
  say({error: error.constructor.name, status: error.status, message: error.message});
}
