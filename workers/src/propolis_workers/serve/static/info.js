/** Beside it: how the server is, what its device holds, and who computes which op. */

import { call, events } from "./api.js";
import { byId } from "./shared.js";

const PAUSE = 2000;
const STATES = {
  ready: "Ready.",
  loading: "The model is being loaded.",
  restarting: "The engine ended and is being started again.",
  failed: "The model cannot be served.",
  stopped: "The server is stopping.",
};

let timer = 0;
let following = false;
let told = {};
let wanted = "chat";

/** Ask now, and every two seconds while the page is looked at; `served` hears each answer. */
export async function watch(served) {
  clearTimeout(timer);
  try {
    told = await (await call("info")).json();
    served(told);
    show();
  } catch (error) {
    state(error.message);
    if (error.status === 401) return; // it asks again with the token
  }
  clearTimeout(timer); // another one may have asked meanwhile
  if (!document.hidden) timer = setTimeout(() => watch(served), PAUSE);
}

/** From now on tell of what serves this tab: "chat" or "draw". */
export function tellOf(tab) {
  wanted = tab;
  show();
}

function show() {
  const part = (wanted === "draw" ? told.image : told) ?? {};
  if (part.state === undefined) return;
  state(STATES[part.state] ?? `The server says: ${part.state}.`);
  server(part);
  placement(part.now ?? {});
  if (part.state === "loading") void progress();
}

/** Said again only where it is news, as it is read out. */
function state(text) {
  if (byId("state").textContent !== text) byId("state").textContent = text;
}

async function progress() {
  if (following) return;
  following = true;
  try {
    for await (const { data } of events(await call("v1/loading/progress"))) {
      const loading = JSON.parse(data);
      byId("loading").hidden = !loading.bytes_total;
      byId("loaded").max = loading.bytes_total || 1;
      byId("loaded").value = loading.bytes_loaded || 0;
      if (loading.message) state(loading.message);
    }
  } catch {
    // The next answer of /info says how it is.
  }
  byId("loading").hidden = true;
  following = false;
}

function server(part) {
  const now = part.now ?? {};
  const facts = {
    Model: part.model,
    Device: part.name && part.device ? `${part.name} (${part.device})` : part.device,
    Context: part.context && `${part.context} tokens`,
    Size: part.size && `${part.size} pixels, ${part.smallest} to ${part.largest}`,
    Requests: "running" in now ? `${now.running} being computed, ${now.waiting} waiting` : "",
    Cache: part.blocks && `${now.blocks_taken ?? 0} of ${part.blocks} blocks in use`,
    "Window cache":
      part.window_blocks && `${now.window_blocks_taken ?? 0} of ${part.window_blocks} blocks in use`,
    Restarts: part.restarts || "",
    Version: told.version,
  };
  const parts = Object.entries(facts).filter(([, value]) => value);
  byId("facts").replaceChildren(
    ...parts.flatMap(([name, value]) => [made("dt", name), made("dd", value)]),
  );
  const { total, free } = now.memory ?? {};
  byId("memory").hidden = !total || typeof free !== "number";
  if (byId("memory").hidden) return;
  byId("memory-used").max = total;
  byId("memory-used").value = total - free;
  byId("memory-text").textContent = `${size(total - free)} of ${size(total)} in use`;
}

function placement({ placement: placed, fallbacks = [] }) {
  byId("placement").hidden = !placed;
  if (!placed) return;
  const known = [placed.ops, placed.decomposed, placed.cpu_instead].flatMap(Object.keys);
  const all = new Set([...known, ...fallbacks.map((one) => one.op)]);
  const nowhere = [...all].filter((op) => !known.includes(op)); // each call of theirs fell
  const away = Object.keys(placed.cpu_instead);
  const here = Object.keys(placed.ops).filter((op) => !away.includes(op));
  const by = [...new Set(here.flatMap((op) => placed.ops[op]))].sort().join(", ") || "nobody";
  const count = all.size - away.length - nowhere.length;
  const text = `${count} of ${all.size} ops on ${placed.device} by ${by}`;
  byId("placement-text").textContent = text;
  byId("elsewhere").replaceChildren(
    ...away.map((op) => made("li", `${op} on the CPU: ${placed.cpu_instead[op]}`)),
    ...fallbacks.map((one) =>
      made("li", `${one.op} fell to the CPU ${one.calls} times: ${one.reason}`),
    ),
  );
  const who = (op) => {
    if (op in placed.cpu_instead || nowhere.includes(op)) return "the CPU";
    if (op in placed.ops) return placed.ops[op].join(", ");
    return `parts: ${placed.decomposed[op]}`;
  };
  const key = JSON.stringify(placed);
  if (byId("ops").dataset.key === key) return; // what somebody is reading stays as it is
  byId("ops").dataset.key = key;
  byId("ops").replaceChildren(
    ...[...all].sort().map((op) => {
      const row = document.createElement("tr");
      row.append(made("th", op), made("td", who(op)));
      row.firstChild.scope = "row";
      return row;
    }),
  );
}

function made(kind, text) {
  const element = document.createElement(kind);
  element.textContent = text;
  return element;
}

function size(bytes) {
  return bytes < 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(0)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}
