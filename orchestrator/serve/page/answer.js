// One turn on the page: the question, the answer as it grows, what became of it.

import { copyButton, make } from "./dom.js";
import { Markdown } from "./markdown.js";
import { words } from "./timing.js";

export class TurnView {
  #markdown;
  #frame = 0;

  /** `turn` is `{ question, answer, end, facts }`; `retry()` is called for another answer. */
  constructor(turn, retry) {
    this.turn = turn;
    this.body = make("div", { class: "body" });
    this.#markdown = new Markdown(this.body);
    this.wait = make("p", { class: "wait dim" }, make("span", { class: "pulse" }), "Working on it");
    // Seen while a stage comes back; see the style of `.pause`.
    this.pause = make("p", { class: "pause" }, "A stage was lost and is coming back. The answer goes on after that.");
    this.note = make("p", { class: "note", hidden: true });
    this.meta = make("span", { class: "meta dim" });
    this.retry = make("button", { type: "button", class: "quiet retry", click: retry }, "Retry");
    this.copy = copyButton("Copy", () => this.turn.answer);
    this.buttons = make("span", { class: "buttons" }, this.copy, this.retry);
    this.article = make(
      "article", { class: "answer", "aria-label": "Answer" },
      this.body, this.wait, this.pause, this.note, make("footer", {}, this.meta, this.buttons),
    );
    this.element = make(
      "section", { class: "turn" },
      make("div", { class: "question", dir: "auto", role: "article", "aria-label": "You" }, turn.question),
      this.article,
    );
  }

  /** Show that the answer is under way. */
  begin() {
    this.article.classList.add("growing");
    this.show();
  }

  /** Show what there is soon: with the next frame, however many pieces come before it. */
  grow() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.show();
    });
  }

  show() {
    const { answer, end, facts } = this.turn;
    this.#markdown.show(answer);
    this.wait.hidden = Boolean(answer || end);
    this.meta.textContent = words(facts);
    this.buttons.hidden = !end;
    this.copy.hidden = !answer;
  }

  /** Show how it ended. */
  end() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.article.classList.remove("growing");
    const { end } = this.turn;
    this.note.hidden = !end.note;
    this.note.textContent = end.note ?? "";
    this.note.classList.toggle("trouble", end.kind === "broken");
    this.show();
  }

  /** Only the newest answer can be asked for again. */
  isNewest(newest) {
    this.retry.hidden = !newest;
  }
}
