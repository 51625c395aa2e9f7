// How fast an answer came.

export class Timing {
  #sentMs = performance.now();
  #firstMs = null;
  #lastMs = null;
  #tokens = 0;

  /** Count a piece of text that has come: one token, as far as can be told before the end. */
  count() {
    this.#lastMs = performance.now();
    this.#firstMs ??= this.#lastMs;
    this.#tokens++;
  }

  /** Take the server's own count. */
  settle(tokens) {
    this.#tokens = tokens;
  }

  /** What is known so far; `rate` is of the tokens after the first. */
  facts() {
    if (this.#firstMs === null) return null;
    const decodeS = (this.#lastMs - this.#firstMs) / 1000;
    return {
      tokens: this.#tokens,
      ttftS: (this.#firstMs - this.#sentMs) / 1000,
      rate: this.#tokens > 1 && decodeS > 0 ? (this.#tokens - 1) / decodeS : null,
    };
  }
}

/** Say it in words. */
export function words(facts) {
  if (!facts) return "";
  const parts = [`${facts.tokens} ${facts.tokens === 1 ? "token" : "tokens"}`];
  if (facts.rate !== null) parts.unshift(`${rounded(facts.rate)} tokens/s`);
  parts.push(`first after ${facts.ttftS < 1 ? `${Math.round(facts.ttftS * 1000)} ms` : `${rounded(facts.ttftS)} s`}`);
  return parts.join(" · ");
}

export const rounded = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1));
