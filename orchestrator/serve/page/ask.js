// One request for an answer, and the server-sent events that come back.

import { fetchWithKey } from "./key.js";

/** The server did not answer, or stopped before the end; the message is for the user. */
export class Broken extends Error {}

/** Yield what each event of an answer holds; ends after the last. Throws Broken. */
export async function* answerOf(body, signal) {
  let response;
  try {
    response = await fetchWithKey("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Broken("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw new Broken(await refusalOf(response));
  for await (const data of eventsOf(response.body, signal)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Broken(event.error.message);
    yield event;
  }
  throw new Broken("The connection to the server was lost.");
}

async function refusalOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `The server answered ${response.status} ${response.statusText}.`;
  }
}

async function* eventsOf(stream, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (unread + value).split(/\r?\n/);
      unread = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } catch (error) {
    if (signal.aborted || error instanceof Broken) throw error;
    throw new Broken("The connection to the server was lost.");
  } finally {
    // Closes the connection, at which the server stops its work on the answer.
    await reader.cancel().catch(() => {});
  }
}
