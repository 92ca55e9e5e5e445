// Tables that are sorted by a click on a heading: numbers by size (what is no number last), words
// by letter.
(function () {
  "use strict";
  const value = (row, i) => {
    const text = row.cells[i].dataset.value;
    return text === undefined ? row.cells[i].textContent.trim() : Number(text);
  };
  document.querySelectorAll("table[data-sortable]").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, i) => {
      head.tabIndex = 0;
      const sort = () => {
        const body = table.tBodies[0],
          rows = [...body.rows].filter((row) => !row.classList.contains("mean"));
        const last = [...body.rows].filter((row) => row.classList.contains("mean"));
        const numbers = rows.some((row) => typeof value(row, i) === "number");
        const down = head.getAttribute("aria-sort")
          ? head.getAttribute("aria-sort") === "ascending" : numbers;
        rows.sort((a, b) => {
          const x = value(a, i), y = value(b, i);
          if (!numbers)
            return (down ? -1 : 1)
              * String(x).localeCompare(String(y), undefined, { numeric: true });
          if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
          return down ? y - x : x - y;
        });
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        body.append(...rows, ...last);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
  });
})();
