/** What the parts of the page share: elements, errors, settings, and what the browser keeps. */

/** The element of an id. */
export const byId = (id) => document.getElementById(id);

/** Say what went wrong; nothing clears it. */
export function tell(problem) {
  byId("problem").textContent = problem;
}

/** What the browser keeps under a name; `otherwise` where it keeps nothing, or nothing sound. */
export function recall(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`propolis.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Let the browser keep something; whether it does. */
export function keep(name, value) {
  try {
    localStorage.setItem(`propolis.${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** The fields of a form that say something: numbers as numbers. Empty ones are the server's. */
export function given(form) {
  const fields = [...form.elements].filter((one) => one.name !== "" && one.value !== "");
  return Object.fromEntries(
    fields.map((one) => [one.name, one.type === "number" ? one.valueAsNumber : one.value]),
  );
}

/** Keep what a form says, and put in what it said when the page was last here. */
export function remember(form, name) {
  const old = recall(name, {});
  for (const one of form.elements) {
    if (one.name !== "" && Object.hasOwn(old, one.name)) one.value = old[one.name];
  }
  form.addEventListener("input", () => keep(name, given(form)));
  form.addEventListener("reset", () => keep(name, {}));
}

/** Let Enter send the form of a text field, save where it ends a word of an input method. */
export function sendByEnter(area) {
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    area.form.requestSubmit();
  });
}

/** Show one of two buttons: to begin, or to stop; the focus does not get lost. */
export function swap(begin, stop, running) {
  const lost = document.activeElement === (running ? begin : stop);
  begin.hidden = running;
  stop.hidden = !running;
  if (lost) (running ? stop : begin).focus();
}
