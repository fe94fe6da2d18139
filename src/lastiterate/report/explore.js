"use strict";
(function () {
  const form = document.getElementById("fields"), shown = document.getElementById("answer");
  const byId = (id) => document.getElementById(id);
  let round = 0, copies = {};
  const buttons = document.querySelectorAll("button[data-copy]");
  function refuse(text) { byId("error").textContent = text; shown.className = "stale"; shown.setAttribute("aria-busy", "false"); copies = {}; byId("copied").value = ""; byId("copy-said").textContent = ""; for (const button of buttons) button.disabled = true; }

  function fields() {
    const found = {};
    for (const input of form.elements) {
      if (!input.name) continue;
      found[input.name] = input.dataset.number ? (input.value === "" ? null : Number(input.value)) : input.value;
    }
    return found;
  }
  async function ask(rows, mine) {
    const reply = await fetch("/answer?rows=" + rows, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields()) });
    const found = await reply.json();
    return mine === round ? found : null;
  }
  function up(value) { const unit = Math.pow(10, Math.floor(Math.log10(value)) - 3); return value > 0 ? Number((Math.ceil(value / unit * (1 - 1e-12)) * unit).toPrecision(4)) : 0; }
  function down(value) { const unit = Math.pow(10, Math.floor(Math.log10(value)) - 3); return value > 0 ? Number((Math.floor(value / unit) * unit).toPrecision(4)) : 0; }
  function show(found) {
    if (found.error) { refuse(found.error); return; }
    byId("error").textContent = "";
    byId("epsilon").textContent = found.epsilon === null ? "nothing certifies this run" : String(up(found.epsilon));
    byId("epsilon").dataset.value = String(found.epsilon);
    byId("at-delta").textContent = String(found.delta);
    byId("theorem").textContent = found.theorem || found.why_not;
    byId("lower").textContent = found.lower === null ? "infinite" : String(down(found.lower));
    byId("lower").dataset.value = String(found.lower);
    byId("multiplier").textContent = found.multiplier.toPrecision(4) + ", standard deviation " + found.std.toPrecision(4) + " of the mean gradient";
    byId("steps-said").textContent = String(found.steps);
    const list = byId("others"); list.textContent = "";
    for (const [name, kind, epsilon] of found.others) {
      const line = document.createElement("li");
      line.textContent = name + " (" + kind + "): " + (epsilon === null ? "infinite" : kind === "lower" ? "at least " + down(epsilon) : up(epsilon)); list.append(line);
    }
    if (found.copies) { copies = found.copies; for (const button of buttons) button.disabled = false; }
    shown.className = found.final ? "" : "stale";
    shown.setAttribute("aria-busy", String(!found.final));
  }
  let waiting = 0;
  form.addEventListener("input", (event) => {
    const input = event.target;
    if (input.type === "number") { const slider = document.querySelector("input[data-mirror=" + input.id + "]"); if (slider) slider.value = slider.dataset.log ? Math.log10(Number(input.value)) : input.value; }
    clearTimeout(waiting); shown.className = "stale";
    if (input.type === "range") byId(input.dataset.mirror).value = input.dataset.log ? Number(Math.pow(10, Number(input.value)).toPrecision(3)) : input.value;
    waiting = setTimeout(begin, 30);
  });
  function begin() {
    const mine = ++round; shown.className = "stale"; byId("curves").className = "stale";
    (async () => {
      const first = await ask("closed", mine); if (!first) return; show(first); if (first.error) return;
      if (!first.final) { const second = await ask("all", mine); if (!second) return; show(second); }
      const third = await ask("curves", mine); if (!third || third.error) return;
      byId("curves").innerHTML = third.curves; byId("curves").className = "";
    })().catch(() => { if (mine === round) refuse("lastiterate explore does not answer: is it still running?"); });
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of buttons) button.addEventListener("click", () => {
    const text = copies[button.dataset.copy] || "";
    byId("copied").value = text; byId("copied").select();
    const said = byId("copy-said"), done = () => { said.textContent = "copied as " + button.dataset.copy; };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => { said.textContent = "select and copy the text below"; });
    else said.textContent = "select and copy the text below";
  });
  begin();
})();
