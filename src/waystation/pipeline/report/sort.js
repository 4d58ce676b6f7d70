// Tables are sorted by a click on a column's head. Everything can be read without this script.
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("th").forEach((head, column) => {
    let upwards = false;
    head.classList.add("sortable");
    head.addEventListener("click", () => {
      const value = (row) => {
        const cell = row.cells[column];
        const raw = cell.dataset.v;
        return raw === undefined ? cell.textContent : Number(raw);
      };
      upwards = !upwards;
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return upwards ? order : -order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
