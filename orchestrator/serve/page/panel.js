// The stages: who holds what, and how busy each is; asked for each second while the page is seen.

import { byId, make } from "./dom.js";
import { fetchWithKey } from "./key.js";
import { rounded } from "./timing.js";

const EACH_MS = 1000;
// Over so many looks the speed is told.
const LOOKS = 5;
const STATES = { ready: "ready", recovering: "coming back", lost: "lost" };
const NUMBERS = { rate: "tokens/s in all", running: "under way", queued: "waiting", reused: "of prompts reused" };

export class Panel {
  #looks = [];
  #rows = [];
  #timer = 0;
  #isRefused = false;
  #numbers = {};
  #onStatus;
  #status = null;

  constructor(onStatus) {
    this.#onStatus = onStatus;
    for (const [name, label] of Object.entries(NUMBERS)) {
      this.#numbers[name] = make("dd", {}, "–");
      byId("numbers").append(make("div", {}, make("dt", {}, label), this.#numbers[name]));
    }
    document.addEventListener("visibilitychange", () => this.#plan(0));
    this.#plan(0);
  }

  #plan(afterMs) {
    clearTimeout(this.#timer);
    if (!document.hidden) this.#timer = setTimeout(() => this.#look(), afterMs);
  }

  async #look() {
    try {
      const response = await fetchWithKey("/stageline/status");
      this.#isRefused = response.status === 401;
      if (response.ok) this.#show(await response.json());
      else this.#say(this.#isRefused ? "Without a key the stages cannot be shown." : `The server answered ${response.status}.`);
    } catch {
      this.#say("The server cannot be reached.");
    } finally {
      // After a key was refused it is asked for again by the next message, not each second.
      if (!this.#isRefused) this.#plan(EACH_MS);
    }
  }

  #say(text) {
    byId("trouble").textContent = text;
    byId("trouble").hidden = false;
    byId("overall").dataset.state = "lost";
    byId("panel").classList.add("stale");
  }

  /** Look again, after a key may have been given. */
  wake() {
    if (this.#isRefused) this.#plan(0);
  }

  /** Return what requests must call the model; "" where the server does not say. */
  async model() {
    if (!this.#status) await this.#look();
    return this.#status?.model ?? "";
  }

  /** Return how many tokens an answer has at most where the settings have no limit; null: what the context holds. */
  get mostTokens() {
    return this.#status?.max_new_tokens ?? null;
  }

  #show(status) {
    this.#status = status;
    byId("panel").classList.remove("stale");
    const trouble = status.failure ?? (status.is_draining ? "The server is shutting down." : null);
    byId("trouble").textContent = trouble ?? "";
    byId("trouble").hidden = trouble === null;
    const states = status.stages.map((stage) => stage.state);
    const worst = ["lost", "recovering", "ready"].find((state) => states.includes(state));
    document.body.dataset.stages = worst;
    byId("overall").dataset.state = status.failure ? "lost" : worst;
    byId("toggle-panel").title = `Stages: ${STATES[worst]}`;
    if (this.#rows.length !== status.stages.length) this.#build(status);
    status.stages.forEach((stage, index) => this.#fill(this.#rows[index], stage, status.num_layers));
    this.#count(status);
    this.#onStatus(status);
  }

  #build({ stages }) {
    this.#rows = stages.map(({ stage }) => {
      const colour = `c${stage % 8}`;
      const parts = {
        host: make("strong"),
        state: make("span", { class: "state" }),
        what: make("span", { class: "dim what" }),
        share: make("span", { class: "share" }),
        bar: make("i"),
        cell: make("i", { class: colour }),
      };
      parts.row = make(
        "li", { class: colour },
        make("div", { class: "who" }, make("span", { class: "number" }, String(stage)), parts.host, parts.state),
        parts.what,
        make("div", { class: "busy" }, make("div", { class: "bar", "aria-hidden": "true" }, parts.bar), parts.share),
      );
      return parts;
    });
    byId("stages").replaceChildren(...this.#rows.map((parts) => parts.row));
    byId("strip").replaceChildren(...this.#rows.map((parts) => parts.cell));
  }

  #fill(parts, { host, device, quantization, layers: [start, end], state, busy_share: share }, numLayers) {
    setText(parts.host, host);
    setText(parts.state, STATES[state]);
    parts.row.dataset.state = parts.cell.dataset.state = state;
    setText(parts.what, `layers ${start}:${end} of ${numLayers} · ${device} · ${quantization}`);
    setText(parts.share, `${Math.round(share * 100)} % busy`);
    parts.bar.style.width = `${100 * share}%`;
    parts.cell.style.flexGrow = end - start;
  }

  #count(status) {
    const now = { ms: performance.now(), tokens: status.generated_tokens };
    // After a restart the server counts from 0.
    if (this.#looks.some((look) => look.tokens > now.tokens)) this.#looks = [];
    const first = (this.#looks = [...this.#looks.slice(-LOOKS), now])[0];
    const rate = now === first ? 0 : ((now.tokens - first.tokens) * 1000) / (now.ms - first.ms);
    setText(this.#numbers.rate, rounded(rate));
    setText(this.#numbers.running, `${status.running} of ${status.places}`);
    setText(this.#numbers.queued, String(status.queued));
    const { prompt_tokens: all, cached_tokens: reused } = status;
    setText(this.#numbers.reused, all ? `${Math.round((100 * reused) / all)} %` : "–");
  }
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
