// The page: what its buttons and keys do.

import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { Panel } from "./panel.js";
import { setUpSettings } from "./settings.js";

const NARROW = matchMedia("(max-width: 820px)");
const message = byId("message");

const panel = new Panel(({ model }) => {
  byId("model").textContent = model;
  byId("model").title = model;
  document.title = `${model} · Stageline`;
});
const chat = new Chat(panel, (isBusy) => {
  byId("send").hidden = isBusy;
  byId("stop").hidden = !isBusy;
  document.body.classList.toggle("is-busy", isBusy);
  panel.wake();
});

function send() {
  if (!chat.send(message.value)) return;
  message.value = "";
  grow();
  message.focus();
}

function grow() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight + 2}px`;
}

function stop() {
  chat.stop();
  message.focus();
}

function showPanel(isOpen) {
  const isDrawer = NARROW.matches;
  document.body.classList.toggle("panel-open", isDrawer && isOpen);
  byId("veil").hidden = !(isDrawer && isOpen);
  byId("toggle-panel").setAttribute("aria-expanded", String(isOpen));
  // What is off the screen must not be reached by the keyboard either.
  byId("panel").inert = isDrawer && !isOpen;
  if (isDrawer && isOpen) byId("panel").focus();
  if (!isDrawer) document.body.classList.toggle("panel-away", !isOpen);
}

const isPanelOpen = () => byId("toggle-panel").getAttribute("aria-expanded") === "true";

function closeDrawer() {
  showPanel(false);
  byId("toggle-panel").focus();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
message.addEventListener("input", grow);
message.addEventListener("keydown", (event) => {
  // Enter that ends the composing of a character is no Enter.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", stop);
byId("new-chat").addEventListener("click", () => {
  chat.clear();
  message.focus();
});
byId("toggle-panel").addEventListener("click", () => showPanel(!isPanelOpen()));
byId("close-panel").addEventListener("click", closeDrawer);
byId("veil").addEventListener("click", closeDrawer);
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
  if (NARROW.matches && isPanelOpen()) closeDrawer();
  else if (chat.isBusy) stop();
});
NARROW.addEventListener("change", () => showPanel(!NARROW.matches));
setUpSettings();
showPanel(!NARROW.matches);
grow();
message.focus();
