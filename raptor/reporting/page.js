// Draws the figures, and sorts a table by the column whose heading is clicked.
const figures = JSON.parse(document.getElementById("figures").textContent);
async function draw(id, figure) {
  if (figure.texts) {
    const {names, runs} = figure.texts;
    const rows = runs.map(run => run.flatMap((k, i) => i % 2 ? [] : Array(run[i + 1]).fill(names[k])));
    for (const trace of figure.data) trace.hovertext = rows;
  }
  await new Promise(done => setTimeout(done));  // lets the page be seen in between
  await Plotly.newPlot(id, figure.data, figure.layout, {responsive: true, displaylogo: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]]});
}
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
