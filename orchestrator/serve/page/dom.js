// Elements, made from names and text only: what a model wrote never becomes markup.

export const byId = (id) => document.getElementById(id);

/** Make an element: `make("p", { class: "dim" }, "text", child, …)`. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** A button that copies what `text()` returns and says so. */
export function copyButton(label, text) {
  const button = make("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    const worked = await copy(text());
    button.textContent = worked ? "Copied" : "Not allowed here";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // There is no clipboard on a page that came over plain HTTP from another machine.
    const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const worked = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return worked;
  }
}
