// A stream, event by event, and its whole message.
import Anthropic from '@anthropic-ai/sdk';

const client = new Anthropic();
const stream = client.messages.stream({model: 'claude-opus-4-20250929', max_tokens: 32000, messages: [{role: 'user', content: 'Hello'}]});
for await (const event of stream) {
  console.log(JSON.stringify(event));
}
console.log(JSON.stringify(await stream.finalMessage()));
