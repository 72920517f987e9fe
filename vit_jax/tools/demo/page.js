"use strict";
// An image goes to the server as it is, and its answer is shown.
const one = selector => document.querySelector(selector);
const main = one("[data-max-bytes]"), said = one(".said"), wrong = one(".wrong[role=alert]"), answer = one(".answer");
const maxBytes = Number(main.dataset.maxBytes);
let current = null;  // what aborts the request under way

function tell(status, error = "") {
  said.textContent = status;
  wrong.textContent = error;
  answer.classList.toggle("old", Boolean(status.endsWith("…") || error));
}

function percent(p) {  // as core/screen.py writes it
  if (0 < p && p < 0.0005) return "<0.1%";
  return 0.9995 < p && p < 1 ? ">99.9%" : (100 * p).toFixed(1) + "%";
}

function mark(place) {
  for (const button of document.querySelectorAll("[data-example]")) {
    button.setAttribute("aria-pressed", button.dataset.example === place);
  }
}

function bar({ name, probability }) {
  const item = document.createElement("li"), text = document.createElement("div");
  const label = document.createElement("span"), number = document.createElement("b");
  const track = document.createElement("i"), fill = document.createElement("u");
  label.textContent = name;
  number.textContent = percent(probability);
  fill.style.width = 100 * probability + "%";
  track.setAttribute("aria-hidden", "true");
  text.append(label, number);
  track.append(fill);
  item.append(text, track);
  return item;
}

function show({ classes, seen, heat }, name) {
  one(".seen").src = seen;
  one(".heat").src = heat;
  one(".classes ol").replaceChildren(...classes.map(bar));
  answer.hidden = false;
  tell(`${name}: taken for ${classes[0].name}, ${percent(classes[0].probability)} sure`);
}

async function ask(file, name) {
  current?.abort();
  const mine = current = new AbortController();
  if (!file.size) return tell("", `${name}: the file is empty. Choose an image.`);
  if (file.size > maxBytes) {
    return tell("", `${name}: the file is larger than ${maxBytes >> 20} MiB. Make the image smaller.`);
  }
  tell(`Looking at ${name} …`);
  try {
    const response = await fetch("look", {
      method: "POST", body: file, signal: mine.signal,
      headers: { "Content-Type": "application/octet-stream" },
    });
    const found = await response.json();
    if (mine !== current) return;
    if (response.ok) show(found, name); else tell("", `${name}: ${found.error}`);
  } catch (error) {
    if (mine !== current) return;
    tell("", "The demo does not answer. Does it still run where it was started?");
  }
}

function take(files) {
  if (!files.length) return tell("", "That was not an image file: drop, paste or choose one.");
  history.replaceState(null, "", location.pathname);
  mark(null);
  ask(files[0], files[0].name || "pasted image");
}

async function example(place) {
  const button = one(`[data-example="${place}"]`);
  if (!button) return;
  history.replaceState(null, "", `#${place}`);
  mark(place);
  try {
    ask(await (await fetch(`examples/${place}`)).blob(), button.title);
  } catch (error) {
    tell("", "The demo does not answer. Does it still run where it was started?");
  }
}

const strength = one(".strength"), cover = () => { one(".heat").style.opacity = strength.value / 100; };
strength.addEventListener("input", cover);
cover();
const input = one("input[type=file]");
input.addEventListener("change", () => {
  if (input.files.length) take(input.files);
  input.value = "";  // so that the same file can be chosen again
});
addEventListener("paste", event => {
  event.preventDefault();
  take(event.clipboardData.files);
});
addEventListener("dragover", event => {
  event.preventDefault();
  document.body.classList.add("over");
});
addEventListener("dragleave", event => {
  if (!event.relatedTarget) document.body.classList.remove("over");
});
addEventListener("drop", event => {
  event.preventDefault();
  document.body.classList.remove("over");
  take(event.dataTransfer.files);
});
for (const button of document.querySelectorAll("[data-example]")) {
  button.addEventListener("click", () => example(button.dataset.example));
}
if (/^#\d+$/.test(location.hash)) example(location.hash.slice(1));  // PAGE#2 opens an example
