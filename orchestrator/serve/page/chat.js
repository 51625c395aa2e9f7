// The conversation: turns, one of which may be under way.

import { TurnView } from "./answer.js";
import { answerOf, Broken } from "./ask.js";
import { byId } from "./dom.js";
import { asFields, settings } from "./settings.js";
import { Speech } from "./speech.js";
import { load, save } from "./store.js";
import { Timing } from "./timing.js";

const STOPPED = { kind: "stopped", note: "Stopped." };
// How near the end of the page one must be to be taken along as it grows.
const NEAR_PX = 60;

export class Chat {
  #views = [];
  #speech = new Speech();
  #stopping = null;
  #server;
  #onBusy;

  /**
   * `server.model()` tells, some time, what the model is called, and `server.mostTokens` the server's limit of an
   * answer; `onBusy(bool)` is told when an answer begins and ends.
   */
  constructor(server, onBusy) {
    this.#server = server;
    this.#onBusy = onBusy;
    for (const turn of load("turns", [])) {
      // The page was left before the end.
      turn.end ??= STOPPED;
      this.#add(turn).end();
    }
    this.#changed();
    addEventListener("pagehide", () => this.#keep());
  }

  get isBusy() {
    return this.#stopping !== null;
  }

  send(question) {
    if (this.isBusy || !question.trim()) return false;
    this.#run(this.#add({ question, answer: "", end: null, facts: null }));
    return true;
  }

  stop() {
    this.#stopping?.abort();
  }

  clear() {
    this.stop();
    this.#views = [];
    byId("turns").replaceChildren();
    this.#changed();
  }

  #add(turn) {
    const view = new TurnView(turn, () => this.#retry(view));
    this.#views.push(view);
    byId("turns").append(view.element);
    this.#changed();
    return view;
  }

  #retry(view) {
    if (this.isBusy) return;
    this.#views.pop();
    view.element.remove();
    this.#run(this.#add({ ...view.turn, answer: "", end: null, facts: null }));
    byId("message").focus();
  }

  async #run(view) {
    const { turn } = view;
    const stopping = (this.#stopping = new AbortController());
    const timing = new Timing();
    this.#onBusy(true);
    this.#speech.begin();
    view.begin();
    this.#scroll(true);
    try {
      const body = await this.#body();
      const reason = await this.#hear(view, timing, body, stopping.signal);
      turn.end = endOf(reason, body.max_tokens, this.#server.mostTokens, timing.facts()?.tokens);
    } catch (error) {
      turn.end = stopping.signal.aborted ? STOPPED : brokenEnd(error, turn.answer);
      if (!(error instanceof Broken) && !stopping.signal.aborted) console.error(error);
    }
    turn.facts = timing.facts();
    view.end();
    this.#stopping = null;
    // A cleared conversation is told of no more.
    if (this.#views.includes(view)) this.#speech.end(turn.answer, turn.end.note);
    this.#keep();
    this.#scroll(false);
    this.#onBusy(false);
  }

  /** Take the answer in as it comes and return why it ended. */
  async #hear(view, timing, body, signal) {
    const { turn } = view;
    let reason = null;
    for await (const { choices, usage } of answerOf(body, signal)) {
      const text = choices[0]?.delta?.content;
      if (text) {
        timing.count();
        turn.answer += text;
        turn.facts = timing.facts();
        const follows = this.#isAtEnd();
        view.grow();
        if (follows) requestAnimationFrame(() => this.#scroll(true));
        this.#speech.hear(turn.answer);
      }
      if (usage) timing.settle(usage.completion_tokens);
      reason = choices[0]?.finish_reason ?? reason;
    }
    if (reason === null) throw new Broken("The server ended it without a reason.");
    return reason;
  }

  async #body() {
    const { system } = settings();
    const newest = this.#views.at(-1).turn;
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const { turn: { question, answer } } of this.#views) {
      // A question that got nothing is no part of the conversation; many templates want turns.
      if (answer) messages.push({ role: "user", content: question }, { role: "assistant", content: answer });
    }
    messages.push({ role: "user", content: newest.question });
    return { model: await this.#server.model(), messages, ...asFields() };
  }

  #isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = byId("scroller");
    return scrollHeight - scrollTop - clientHeight < NEAR_PX;
  }

  #scroll(always) {
    const scroller = byId("scroller");
    if (always || this.#isAtEnd()) scroller.scrollTop = scroller.scrollHeight;
  }

  #changed() {
    for (const view of this.#views) view.isNewest(view === this.#views.at(-1));
    byId("empty").hidden = this.#views.length > 0;
    this.#keep();
  }

  #keep() {
    save("turns", this.#views.map((view) => view.turn));
  }
}

/** Say how an answer ended; `wanted` is the limit of the settings, if they have one. */
function endOf(reason, wanted, mostTokens, tokens) {
  if (reason === "stop") return { kind: "done" };
  if (reason !== "length") return { kind: "cut", note: `Ended: ${reason}.` };
  if (wanted !== undefined) return { kind: "cut", note: "Cut at the limit of tokens. Settings has the limit." };
  if (tokens === mostTokens) return { kind: "cut", note: `Cut at ${tokens} tokens: this server's own limit.` };
  return { kind: "cut", note: "Cut where the model's context is full." };
}

function brokenEnd(error, answer) {
  const why = error instanceof Broken ? error.message : "The page could not read what the server sent.";
  return { kind: "broken", note: answer ? `The answer broke off: ${why}` : why };
}
