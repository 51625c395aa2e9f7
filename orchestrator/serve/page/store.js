// What this tab remembers until it is closed: the turns, the settings, the key.

const PREFIX = "stageline.";

export function load(name, fallback) {
  try {
    const text = sessionStorage.getItem(PREFIX + name);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback; // storage is forbidden, or holds what another program put there
  }
}

export function save(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(PREFIX + name);
    else sessionStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Full or forbidden: the conversation goes on, a reload begins anew.
  }
}
