// Requests with the key, where the server asks for one; the user is asked for it once.

import { byId } from "./dom.js";
import { load, save } from "./store.js";

let key = load("key", null);
let asking = null;

/** Fetch; where the server wants a key, ask the user for it and fetch again. */
export async function fetchWithKey(path, options = {}) {
  while (true) {
    const shown = key;
    const headers = { ...options.headers, ...(shown && { Authorization: `Bearer ${shown}` }) };
    const response = await fetch(path, { ...options, headers, credentials: "same-origin" });
    if (response.status !== 401) return response;
    // Another request may have asked meanwhile.
    if (key === shown && !(await (asking ??= ask(shown)))) return response;
  }
}

function ask(refused) {
  const dialog = byId("key"), input = byId("key-value"), trouble = byId("key-trouble");
  trouble.hidden = refused === null;
  trouble.textContent = "The server does not know this key.";
  input.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const done = new AbortController();
    const { signal } = done;
    const use = () => {
      if (!input.value.trim()) return;
      key = input.value.trim();
      save("key", key);
      dialog.close("used");
    };
    byId("save-key").addEventListener("click", use, { signal });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); use(); }
    }, { signal });
    dialog.addEventListener("close", () => {
      done.abort();
      const used = dialog.returnValue === "used";
      dialog.returnValue = "";
      asking = null;
      resolve(used);
    }, { signal });
  });
}
