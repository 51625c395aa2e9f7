// The system prompt and how to sample: a dialog, kept in this tab.

import { byId } from "./dom.js";
import { load, save } from "./store.js";

const DEFAULTS = { system: "", temperature: 0.7, maxTokens: null };

export const settings = () => ({ ...DEFAULTS, ...load("settings", {}) });

/** What of the settings goes into a request. */
export function asFields() {
  const { temperature, maxTokens } = settings();
  return { temperature, ...(maxTokens !== null && { max_tokens: maxTokens }) };
}

export function openSettings() {
  const now = settings();
  byId("system").value = now.system;
  byId("temperature").value = now.temperature;
  byId("max-tokens").value = now.maxTokens ?? "";
  byId("settings").showModal();
}

export function setUpSettings() {
  byId("open-settings").addEventListener("click", openSettings);
  byId("save-settings").addEventListener("click", () => {
    const temperature = byId("temperature"), maxTokens = byId("max-tokens");
    if (!temperature.reportValidity() || !maxTokens.reportValidity()) return;
    save("settings", {
      system: byId("system").value,
      temperature: temperature.value === "" ? DEFAULTS.temperature : Number(temperature.value),
      maxTokens: maxTokens.value === "" ? null : Number(maxTokens.value),
    });
    byId("settings").close();
  });
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
}
