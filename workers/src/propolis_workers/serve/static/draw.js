/** Drawing: a job that is begun, watched and cancelled. */

import { ApiError, call, events } from "./api.js";
import { byId, given, remember, sendByEnter, swap, tell } from "./shared.js";

let running = null;

/** Stop the drawing that is on its way. */
export function stop() {
  running?.abort();
}

/** The sizes that the model draws are those that may be typed. */
export function served({ size, smallest, largest, multiple_of: factor }) {
  for (const field of byId("draw-form").querySelectorAll("[name=width], [name=height]")) {
    Object.assign(field, { min: smallest ?? "", max: largest ?? "", step: factor ?? 1 });
    field.placeholder = size ?? "default";
  }
}

/** Make it work. */
export function start() {
  const form = byId("draw-form");
  remember(form, "drawing");
  sendByEnter(byId("prompt"));
  byId("draw-stop").addEventListener("click", stop);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running === null) void draw(given(form));
  });
}

async function draw(asked) {
  const own = (running = new AbortController());
  const status = byId("draw-status");
  tell("");
  swap(byId("draw"), byId("draw-stop"), true);
  byId("steps-done").removeAttribute("value");
  byId("drawing").hidden = false;
  status.textContent = "Drawing.";
  try {
    await watch(asked, own.signal);
    status.textContent = "The image is ready.";
  } catch (error) {
    const stopped = own.signal.aborted;
    status.textContent = stopped ? "Stopped." : "";
    if (!stopped) tell(error instanceof ApiError ? error.message : String(error));
  }
  byId("drawing").hidden = true;
  running = null;
  swap(byId("draw"), byId("draw-stop"), false);
}

/** Begin a job, and show what it tells until its image is there. */
async function watch(asked, signal) {
  const body = { operation: "image_generation", ...asked };
  // Not to be broken off: the job would go on, and nobody would know its name.
  const job = await (await call("v1/jobs", { method: "POST", body })).json();
  try {
    signal.throwIfAborted();
    const response = await call(job.sse_url, { signal });
    for await (const { name, data } of events(response)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      const what = name || event.type;
      if (what === "error") throw new ApiError(event.message);
      if (what === "progress") progress(event);
      if (what === "preview") show(event.image, asked.prompt);
      if (what === "complete") {
        show(event.image, asked.prompt, event);
        return;
      }
    }
    throw new ApiError("The connection to the server ended before the image was there.");
  } finally {
    if (signal.aborted) {
      const path = `v1/jobs/${encodeURIComponent(job.job_id)}`;
      await call(path, { method: "DELETE" }).catch(() => {}); // it may have ended meanwhile
    }
  }
}

function progress({ step, total }) {
  const bar = byId("steps-done");
  bar.max = total;
  bar.value = step;
  bar.textContent = `${step} of ${total}`;
}

/** Show an image of bytes in base64; it is a PNG, or nothing. `whole` is what is told of it. */
function show(encoded, prompt, whole = null) {
  const bytes = Uint8Array.from(atob(encoded), (one) => one.charCodeAt(0));
  const image = byId("image");
  const link = byId("download");
  URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
  image.alt = whole ? prompt : `Not finished: ${prompt}`;
  byId("figure").hidden = false;
  link.hidden = !whole;
  link.href = image.src;
  const said = [prompt];
  if (whole && "seed" in whole) said.push(`seed ${whole.seed}`);
  if (whole?.inference_time_ms) said.push(`${(whole.inference_time_ms / 1000).toFixed(1)} s`);
  byId("caption").textContent = [...said, ...(whole?.notes ?? [])].join("; ");
  const name = prompt.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  link.download = `${name.slice(0, 60) || "image"}.png`;
}
