"use strict";
// Hovering shows values, the legend hides runs. The pictures are there without it.
const LEFT = 50, RIGHT = 322, TOP = 10, BOTTOM = 164;  // as in panels.py
const SVG = "http://www.w3.org/2000/svg";
const tip = document.getElementById("tip");
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

const nameOf = run =>
  (document.querySelector(`nav label[data-run="${run}"]`) ?? document.querySelector("h1")).textContent.trim();

function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle; else high = middle;
  }
  return step - steps[low] < steps[high] - step ? low : high;
}

function shown(value, figure) {
  if (value === null) return "not finite";
  if ("percent" in figure.dataset) {  // as core/screen.py writes it
    if (0 < value && value < 5e-5) return "<0.01%";
    return 0.99995 < value && value < 1 ? ">99.99%" : (100 * value).toFixed(2) + "%";
  }
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e7)) return value.toExponential(3);
  return value.toLocaleString("en", { maximumSignificantDigits: 5 });
}

function place(value, { low, high, log }) {
  const f = log === undefined ? x => x : Math.log;
  return BOTTOM - (BOTTOM - TOP) * (f(value) - f(+low)) / (f(+high) - f(+low));
}

function leave() {
  tip.style.display = "none";
  all(".cursor").forEach(line => { line.style.visibility = "hidden"; });
  all(".spot").forEach(spot => spot.remove());
}

function row(look, text, value) {
  const line = document.createElement("p");
  if (look !== null) line.append(document.querySelector(`.swatch.run${look}`).cloneNode(true));
  const name = document.createElement("span"), number = document.createElement("b");
  name.textContent = text;
  number.textContent = value;
  line.append(name, number);
  return line;
}

function hover(figure, event) {
  leave();
  const svg = figure.querySelector("svg:not(.swatch)"), box = svg.getBoundingClientRect();
  const across = ((event.clientX - box.left) / box.width * svg.viewBox.baseVal.width - LEFT) / (RIGHT - LEFT);
  const wanted = Math.min(1, Math.max(0, across)) * figure.dataset.last;
  const found = [];
  for (const line of all(".line[data-points]:not(.hidden)", svg)) {
    line.points ??= JSON.parse(line.dataset.points);
    const [steps, values] = line.points, i = nearest(steps, wanted);
    found.push({ ...line.dataset, step: steps[i], value: values[i] });
  }
  if (!found.length) return;
  // The step that is nearest of all; runs that have another one say so.
  const step = found.reduce((a, b) => Math.abs(b.step - wanted) < Math.abs(a.step - wanted) ? b : a).step;
  const x = LEFT + (RIGHT - LEFT) * step / figure.dataset.last;
  for (const line of all(".cursor")) {
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    line.style.visibility = "visible";
  }
  found.sort((a, b) => (b.value ?? -Infinity) - (a.value ?? -Infinity));
  const means = svg.querySelector("[data-means]") ? ", means" : "";
  tip.replaceChildren(row(null, `step ${step.toLocaleString("en")}${means}`, ""));
  for (const { run, look, part, step: own, value } of found) {
    const at = own === step ? "" : ` (step ${own.toLocaleString("en")})`;
    const name = part && !document.querySelector("nav") ? part : [nameOf(run), part].filter(Boolean).join(", ");
    tip.append(row(look, name + at, shown(value, figure)));
    if (value === null) continue;
    const spot = document.createElementNS(SVG, "circle");
    spot.setAttribute("class", `spot run${look}`);
    spot.setAttribute("cx", LEFT + (RIGHT - LEFT) * own / figure.dataset.last);
    spot.setAttribute("cy", place(value, figure.dataset));
    spot.setAttribute("r", 3.2);
    svg.append(spot);
  }
  tip.style.display = "block";
  const right = event.clientX + 18 + tip.offsetWidth > innerWidth;
  tip.style.left = `${right ? Math.max(4, event.clientX - 18 - tip.offsetWidth) : event.clientX + 18}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4))}px`;
}

for (const figure of all("figure[data-last]")) {
  const svg = figure.querySelector("svg:not(.swatch)"), cursor = document.createElementNS(SVG, "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", TOP);
  cursor.setAttribute("y2", BOTTOM);
  svg.append(cursor);
  svg.addEventListener("pointermove", event => hover(figure, event));
  svg.addEventListener("pointerleave", leave);
}
for (const box of all("nav input")) {
  box.addEventListener("change", () => {
    all(`.line.run${box.dataset.run}, tbody tr[data-run="${box.dataset.run}"]`)
      .forEach(part => part.classList.toggle("hidden", !box.checked));
  });
}
for (const part of all("nav label, tbody tr[data-run]")) {
  part.addEventListener("pointerenter", () => all(".line").forEach(line =>
    line.classList.toggle("faded", line.dataset.run !== part.dataset.run)));
  part.addEventListener("pointerleave", () => all(".line").forEach(line => line.classList.remove("faded")));
}
