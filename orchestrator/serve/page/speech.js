// Reads an answer to those who listen to the page: whole sentences, as they become complete.

import { byId, make } from "./dom.js";

const SENTENCE_END = /[.!?:;。！？…]["')\]]*\s|\n/g;

export class Speech {
  #said = 0;

  begin() {
    this.#said = 0;
    byId("speech").replaceChildren();
  }

  /** Take the text so far. */
  hear(text) {
    const ends = [...text.slice(this.#said).matchAll(SENTENCE_END)];
    if (ends.length) this.#say(text, this.#said + ends.at(-1).index + ends.at(-1)[0].length);
  }

  /** Take the whole text, and what is to be said after it. */
  end(text, note) {
    this.#say(text, text.length);
    if (note) this.note(note);
  }

  note(text) {
    byId("speech").append(make("p", {}, text));
  }

  #say(text, end) {
    const part = text.slice(this.#said, end).trim();
    this.#said = end;
    if (part) this.note(part);
  }
}
