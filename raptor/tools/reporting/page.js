// Draws the figures, and sorts a table by the column whose heading is clicked.
const NARROW = 640;
const figures = JSON.parse(document.getElementById("figures").textContent);
async function draw(id, figure) {
  if (figure.texts) {
    const {names, runs} = figure.texts;
    const rows = runs.map(run => run.flatMap((k, i) => i % 2 ? [] : Array(run[i + 1]).fill(names[k])));
    for (const trace of figure.data) trace.hovertext = rows;
  }
  if (innerWidth < NARROW) narrow(figure);
  await new Promise(done => setTimeout(done));  // lets the page be seen in between
  const picture = format => ({name: format, title: `Download as ${format.toUpperCase()}`, icon: Plotly.Icons.camera,
    click: plot => Plotly.downloadImage(plot, {format, filename: id, scale: format === "png" ? 2 : 1})});
  const svg = {...picture("svg"), icon: Plotly.Icons.disk};
  await Plotly.newPlot(id, figure.data, figure.layout, {responsive: true, displaylogo: false,
    modeBarButtons: [[picture("png"), svg, "zoom2d", "pan2d", "resetScale2d"]]});
}
// A telephone: one menu instead of a row of buttons, colours below the plot, room for the tools above everything.
function narrow({data, layout}) {
  const below = data.some(trace => trace.colorbar || trace.marker?.colorbar), title = 70, bar = 45, names = 90;
  layout.margin = {l: 45, r: 10, t: layout.legend?.orientation === "h" ? 115 : layout.updatemenus ? 90 : 40,
    b: below ? title + bar : 50};
  if (layout.barmode && layout.legend?.orientation !== "h") {
    layout.margin.b += names;
    layout.height += names;
    const plot = layout.height - layout.margin.t - layout.margin.b;
    layout.legend = {...layout.legend, orientation: "h", x: 0, y: -title / plot, yanchor: "top"};
  }
  if (layout.yaxis?.scaleanchor) layout.height = Math.min(layout.height, innerWidth + 110);
  for (const menu of layout.updatemenus ?? []) Object.assign(menu, {type: "dropdown", direction: "down"});
  for (const trace of data) {
    const found = trace.colorbar ?? trace.marker?.colorbar;
    if (!found) continue;
    const plot = layout.height - layout.margin.t - layout.margin.b;
    Object.assign(found, {orientation: "h", x: 0.5, xanchor: "center", y: -title / plot, yanchor: "top", thickness: 10});
    found.title = {...found.title, side: "bottom"};
    // Names would lie over each other; the figure of all cores has the same colours with their names.
    if (found.ticktext?.some(isNaN)) trace.showscale = false;
  }
}
for (const button of document.querySelectorAll("button.turn")) {
  button.addEventListener("click", () => {
    document.getElementById(button.dataset.table).classList.toggle(button.dataset.turns);
    [button.textContent, button.dataset.other] = [button.dataset.other, button.textContent];
    mark();
  });
}
function mark() {
  for (const box of document.querySelectorAll(".scroll")) {
    box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
  }
}
for (const box of document.querySelectorAll(".scroll")) box.addEventListener("scroll", mark);
addEventListener("resize", mark);
mark();
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, body = heading.closest("table").tBodies[0];
    const down = heading.getAttribute("aria-sort") !== "descending";
    for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.cells[heading.cellIndex].dataset.value;
    const order = heading.classList.contains("number")
      ? (a, b) => value(a) - value(b)
      : (a, b) => value(b).localeCompare(value(a), undefined, {numeric: true});
    body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
  });
}
(async () => {
  for (const [id, figure] of Object.entries(figures)) await draw(id, figure);
  document.body.dataset.drawn = "yes";
})();
