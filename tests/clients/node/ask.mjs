// The official openai client of npm: asks for what the one argument says, prints what came as JSON.
import OpenAI from "openai";

const asked = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: asked.url, apiKey: "unused", maxRetries: 0 });
const base = { model: asked.model, temperature: 0 };

async function streamed(fields) {
  let text = "";
  let last = null;
  const options = { include_usage: true };
  const chunks = await client.chat.completions.create({
    ...base, ...fields, stream: true, stream_options: options,
  });
  for await (const chunk of chunks) {
    text += chunk.choices[0]?.delta.content ?? "";
    last = chunk.choices[0]?.finish_reason ?? last;
    if (chunk.usage) return { text, finish_reason: last, usage: chunk.usage };
  }
  throw new Error("no usage came");
}

async function whole(fields) {
  const { choices, usage } = await client.chat.completions.create({ ...base, ...fields });
  const { message, finish_reason } = choices[0];
  const calls = message.tool_calls?.map((one) => one.function) ?? [];
  return { text: message.content, calls, finish_reason, usage };
}

// Breaks off after the first piece; the server is told by the connection that closes.
async function begun(fields) {
  const chunks = await client.chat.completions.create({ ...base, ...fields, stream: true });
  for await (const chunk of chunks) {
    if (chunk.choices[0].delta.content) return chunk.choices[0].delta.content;
  }
  throw new Error("nothing came");
}

async function refused(fields) {
  try {
    await client.chat.completions.create({ ...base, ...fields });
  } catch (error) {
    const { status, code, param, type } = error;
    return { name: error.constructor.name, status, code, param, type };
  }
  throw new Error("it was not refused");
}

const models = async () => (await client.models.list()).data.map((one) => one.id);
const ways = { streamed, whole, begun, refused, models };
const answers = [];
for (const [way, fields] of asked.questions) answers.push(await ways[way](fields));
console.log(JSON.stringify(answers));
