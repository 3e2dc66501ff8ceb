// Makes call after call until a time (UNTIL, in Unix seconds), and prints what became of each.
import OpenAI from 'openai';

const client = new OpenAI();
while (Date.now() / 1000 < Number(process.env.UNTIL)) {
  try {
    await client.chat.completions.create({model: 'gpt-5', messages: [{role: 'user', content: 'Hello'}], max_completion_tokens: 50});
    console.log('ok');
  } catch (error) {
    console.log(`lost ${error}`);
  }
}
