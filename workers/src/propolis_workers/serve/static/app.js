/** The page as a whole: tabs, the token, and the key that stops. */

import { hasToken, useToken } from "./api.js";
import * as chat from "./chat.js";
import * as draw from "./draw.js";
import { tellOf, watch } from "./info.js";
import { byId, remember } from "./shared.js";

const TABS = ["chat", "draw"];

function select(chosen) {
  for (const name of TABS) {
    const tab = byId(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === chosen));
    tab.tabIndex = name === chosen ? 0 : -1;
    byId(`panel-${name}`).hidden = name !== chosen;
  }
  byId("sampling").hidden = chosen !== "chat";
  tellOf(chosen);
}

const isShown = (name) => !byId(`tab-${name}`).hidden;
const isChosen = (name) => byId(`tab-${name}`).getAttribute("aria-selected") === "true";

/** Show the tabs of what is served. */
function served(info) {
  byId("tab-chat").hidden = !info.model;
  byId("tab-draw").hidden = !info.image;
  document.title = `${info.model ?? info.image?.model ?? "nothing is served"} – Propolis`;
  byId("token-form").hidden = true;
  draw.served(info.image ?? {});
  if (!TABS.some((name) => isShown(name) && isChosen(name))) select(TABS.find(isShown));
}

/** Arrows, Home and End walk from tab to tab. */
function walk(event) {
  const shown = TABS.filter(isShown);
  const at = shown.indexOf(event.target.id.replace("tab-", ""));
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const next = shown.at(to % shown.length);
  select(next);
  byId(`tab-${next}`).focus();
}

function askForToken(event) {
  const form = byId("token-form");
  if (hasToken()) byId("token-help").textContent = `The server says: ${event.detail}.`;
  if (!form.hidden) return;
  form.hidden = false;
  byId("token").focus();
}

for (const name of TABS) {
  byId(`tab-${name}`).addEventListener("click", () => select(name));
  byId(`tab-${name}`).addEventListener("keydown", walk);
}
document.addEventListener("token-wanted", askForToken);
document.addEventListener("visibilitychange", () => !document.hidden && watch(served));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  chat.stop();
  draw.stop();
});
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value.trim());
  byId("token").value = "";
  void watch(served);
});
remember(byId("sampling-form"), "sampling");
chat.start();
draw.start();
void watch(served);
