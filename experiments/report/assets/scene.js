// The 3-D scene: viser's client in a frame of its own, given one recording at a time. It starts when it comes into view.
(function () {
  "use strict";
  const place = document.getElementById("scene");
  if (!place) return;
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const stage = place.querySelector(".stage"), buttons = [...place.querySelectorAll(".choice button")];
  let client = null, shown = -1;
  const dark = () => { const theme = document.documentElement.dataset.theme; return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches; };
  function show(i) {
    client = client || read("scene-client");
    const data = read("scene-" + i), frame = document.createElement("iframe");
    const script = "<script>window.__VISER_EMBED_DATA__=" + JSON.stringify(data) + ";window.__VISER_EMBED_CONFIG__={darkMode:" + dark() + "};</" + "script>";
    const end = client.indexOf("</head>");
    frame.title = buttons[i].textContent + ", 3-D replay";
    frame.srcdoc = client.slice(0, end) + script + client.slice(end);
    stage.replaceChildren(frame);
    buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(k === i)));
    shown = i;
  }
  buttons.forEach((button, i) => button.addEventListener("click", () => show(i)));
  const watch = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) { watch.disconnect(); if (shown < 0) show(0); }
  }, { rootMargin: "200px" });
  watch.observe(stage);
})();
