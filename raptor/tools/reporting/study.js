// Shows the points of a study: filters and sorts all of them, draws the first ones.
{
  const MOST = 300;
  const {names, columns} = JSON.parse(document.getElementById("rows").textContent);
  for (const column of columns.filter(column => column.pieces)) {
    column.texts = column.lines.map(line => line.map(k => column.pieces[k]).join(column.between));
    column.index = [...column.lines.keys()];
  }
  const count = columns.length ? (columns[0].index ?? columns[0].numbers).length : 0;
  const value = (column, row) => column.numbers ? column.numbers[row] : column.texts[column.index[row]];
  const table = document.getElementById("rows-table"), filter = document.getElementById("filter");
  const lower = columns.map(column => column.texts?.map(text => text.toLowerCase()));
  let sorted = names.indexOf("trial"), down = false;
  function condition(word) {
    const parts = word.match(/^(.+?)(<=|>=|<|>|=)(.*)$/), column = parts && names.indexOf(parts[1]);
    if (!parts || column < 0) {
      const hits = lower.map(texts => texts?.map(text => text.includes(word.toLowerCase())));
      return row => columns.some((c, k) => hits[k] ? hits[k][c.index[row]] : String(c.numbers[row]) === word);
    }
    const wanted = parts[3], number = Number(wanted), at = row => value(columns[column], row);
    if (parts[2] === "=") return row => String(at(row)) === wanted || (wanted !== "" && Number(at(row)) === number);
    return {"<": row => at(row) !== null && at(row) < number, "<=": row => at(row) !== null && at(row) <= number,
      ">": row => at(row) !== null && at(row) > number, ">=": row => at(row) !== null && at(row) >= number}[parts[2]];
  }
  function compare(a, b) {
    const [x, y] = [value(columns[sorted], a), value(columns[sorted], b)];
    if (x === y) return a - b;
    if (x === null || x === "") return 1;
    if (y === null || y === "") return -1;
    const order = typeof x === "number" ? x - y : x.localeCompare(y, undefined, {numeric: true});
    return down ? -order : order;
  }
  function show() {
    const conditions = filter.value.trim().split(/\s+/).filter(Boolean).map(condition);
    const found = [...Array(count).keys()].filter(row => conditions.every(holds => holds(row))).sort(compare);
    table.tBodies[0].replaceChildren(...found.slice(0, MOST).map(row => {
      const line = document.createElement("tr");
      for (const column of columns) {
        const cell = line.insertCell();
        cell.textContent = value(column, row) ?? "";
        if (column.numbers) cell.className = "number";
      }
      return line;
    }));
    document.getElementById("counted").textContent =
      `${found.length} of ${count} points${found.length > MOST ? `, the first ${MOST} are shown` : ""}`;
  }
  const heads = table.tHead.insertRow();
  names.forEach((name, k) => {
    const head = document.createElement("th"), button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    if (columns[k].numbers) head.className = "number";
    button.addEventListener("click", event => {
      event.stopImmediatePropagation();
      down = sorted === k && !down;
      sorted = k;
      for (const other of heads.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      show();
    });
    head.append(button);
    heads.append(head);
  });
  filter.addEventListener("input", show);
  show();
}
