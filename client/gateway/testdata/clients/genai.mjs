// A stream.
import {GoogleGenAI} from '@google/genai';

const client = new GoogleGenAI({apiKey: process.env.GEMINI_API_KEY});
for await (const chunk of await client.models.generateContentStream({model: 'gemini-3', contents: 'Hello'})) {
  console.log(JSON.stringify({text: chunk.text, usage: chunk.usageMetadata}));
}
