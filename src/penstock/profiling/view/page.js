// Draws the figures of the page, and shows what was clicked on.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const panel = document.getElementById("panel");

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function excerpt(source) {
  const lines = document.createElement("pre");
  for (const [number, text] of source.excerpt) {
    const isHere = number === source.line;
    const line = `${String(number).padStart(4)}  ${text}`;
    lines.append(isHere ? element("span", line, "here") : line, "\n");
  }
  return lines;
}

function show(key) {
  const detail = data.details[key];
  if (!detail) return;
  const close = element("button", "close");
  close.onclick = () => { panel.hidden = true; };
  panel.replaceChildren(close, element("h3", detail.title));
  for (const line of detail.lines) panel.append(element("div", line));
  if (detail.source) {
    panel.append(element("div", detail.source.text, "source"));
    if (detail.source.excerpt.length) panel.append(excerpt(detail.source));
  }
  panel.hidden = false;
}

const common = { dragmode: "pan", margin: { l: 70, r: 20, t: 24, b: 52 }, plot_bgcolor: "#ffffff" };
const options = { scrollZoom: true, displaylogo: false, responsive: true };

Promise.all(Object.entries(data.figures).map(async ([name, figure]) => {
  const place = document.getElementById(name);
  await Plotly.newPlot(place, figure.data, { ...common, ...figure.layout }, options);
  place.on("plotly_click", (event) => show(event.points[0].customdata));
})).then(() => { document.body.dataset.ready = "yes"; });
