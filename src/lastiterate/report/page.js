"use strict";
(function () {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const byId = (id) => document.getElementById(id);

  // Phi and the Gaussian curve, written for this page alone: nothing of the Python accountant is used.
  function erfcx(x) {                       // e^(x^2) erfc(x) for x >= 0
    if (x < 2.2) {
      let term = x, sum = x;
      for (let k = 1; Math.abs(term) > 1e-18 * Math.abs(sum); k++) { term *= 2 * x * x / (2 * k + 1); sum += term; }
      return Math.exp(x * x) - 2 / Math.sqrt(Math.PI) * sum;
    }
    let f = x;                              // a continued fraction from its tail
    for (let k = 160; k > 0; k--) f = x + k / 2 / f;
    return 1 / (f * Math.sqrt(Math.PI));
  }
  function below(z) {                       // Phi(z)
    const t = Math.abs(z) / Math.SQRT2, tail = Math.exp(-t * t) * erfcx(t) / 2;
    return z < 0 ? tail : 1 - tail;
  }
  function quantile(p) {                    // z with Phi(z) = p
    let low = -40, high = 40;
    for (let i = 0; i < 200; i++) { const m = (low + high) / 2; if (below(m) < p) low = m; else high = m; }
    return (low + high) / 2;
  }
  function gaussianDelta(epsilon, mu) {
    const a = mu / 2 - epsilon / mu, b = a - mu;
    if (a > 0) return below(a) - Math.exp(epsilon) * below(b);
    return Math.exp(-a * a / 2) / 2 * (erfcx(-a / Math.SQRT2) - erfcx(-b / Math.SQRT2));
  }
  function gaussianEpsilon(delta, mu) {
    if (gaussianDelta(0, mu) <= delta) return 0;
    let low = 0, high = 1;
    while (gaussianDelta(high, mu) > delta) high *= 2;
    for (let i = 0; i < 200; i++) { const m = (low + high) / 2; if (gaussianDelta(m, mu) > delta) low = m; else high = m; }
    return high;
  }

  // The best (epsilon, delta) that Renyi divergences give: at one order, and over all orders or those of a table
  function atOrder(alpha, value, delta) {
    const rest = -Math.log(delta) / (alpha - 1);
    return value + rest + Math.min(0, Math.log1p(-1 / alpha) - Math.log(alpha) / (alpha - 1));
  }
  function renyiEpsilon(delta, slope) {
    const f = (t) => atOrder(1 + Math.exp(t), slope * (1 + Math.exp(t)), delta);
    let low = -25, best = Infinity;         // coarse places, then thirds around the best of them
    for (let t = -25; t < 25; t += 0.05) if (f(t) < best) { best = f(t); low = t; }
    let high = low + 0.05; low -= 0.05;
    for (let i = 0; i < 200; i++) { const a = low + (high - low) / 3, b = high - (high - low) / 3; if (f(a) < f(b)) high = b; else low = a; }
    return Math.max(0, f((low + high) / 2));
  }
  function tableEpsilon(delta, orders, values) {
    return Math.max(0, orders.reduce((best, alpha, i) => Math.min(best, atOrder(alpha, values[i], delta)), Infinity));
  }

  // SHA-256 (FIPS 180-4) for browsers that have no SubtleCrypto for local files
  function plainSha256(bytes) {
    const primes = [];
    for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p)) primes.push(n);
    const part = (x) => ((x - Math.floor(x)) * 4294967296) >>> 0;
    const k = primes.map((p) => part(Math.cbrt(p))), h = primes.slice(0, 8).map((p) => part(Math.sqrt(p)));
    const length = bytes.length, padded = new Uint8Array(((length + 8 >> 6) + 1) << 6);
    padded.set(bytes); padded[length] = 128;
    const view = new DataView(padded.buffer);
    view.setUint32(padded.length - 8, Math.floor(length / 536870912)); view.setUint32(padded.length - 4, length << 3);
    const w = new Uint32Array(64), turn = (x, n) => x >>> n | x << 32 - n;
    for (let at = 0; at < padded.length; at += 64) {
      for (let i = 0; i < 16; i++) w[i] = view.getUint32(at + 4 * i);
      for (let i = 16; i < 64; i++) {
        const x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (turn(x, 7) ^ turn(x, 18) ^ x >>> 3) + w[i - 7] + (turn(y, 17) ^ turn(y, 19) ^ y >>> 10);
      }
      let [a, b, c, d, e, f, g, z] = h;
      for (let i = 0; i < 64; i++) {
        const one = z + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + (e & f ^ ~e & g) + k[i] + w[i] | 0;
        const two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + (a & b ^ a & c ^ b & c) | 0;
        z = g; g = f; f = e; e = d + one | 0; d = c; c = b; b = a; a = one + two | 0;
      }
      [a, b, c, d, e, f, g, z].forEach((value, i) => { h[i] = h[i] + value >>> 0; });
    }
    return h.map((value) => value.toString(16).padStart(8, "0")).join("");
  }
  async function sha256(bytes) {
    if (!(window.crypto && window.crypto.subtle)) return plainSha256(bytes);
    const found = new Uint8Array(await window.crypto.subtle.digest("SHA-256", bytes));
    return Array.from(found, (value) => value.toString(16).padStart(2, "0")).join("");
  }

  function row(table, cells, holds, good) {
    const line = document.createElement("tr");
    for (const text of cells) { const cell = document.createElement("td"); cell.textContent = text; line.append(cell); }
    const last = document.createElement("td");
    last.textContent = holds ? good : "DIFFERS"; last.className = !holds ? "no" : good === "agrees" ? "ok" : "soft"; line.append(last);
    table.append(line);
    return holds;
  }
  function recompute() {
    const table = byId("recomputed");
    if (!table) return;
    const close = (one, two) => Math.abs(one - two) <= 1e-6 * Math.max(Math.abs(one), Math.abs(two)) + 1e-12;
    let all = true, cruder = null;
    const sure = new Set();              // numbers that were computed again exactly
    const compare = (what, stated, found) => { sure.add(stated); all = row(table, [what, String(stated), found.toPrecision(10)], close(stated, found), "agrees") && all; };
    for (const each of data.gaussian || []) {
      if (each.kind === "epsilon") compare(each.what, each.stated, gaussianEpsilon(each.delta, each.mu));
      if (each.kind === "rate") compare(each.what, each.stated, below(quantile(each.rate) + each.mu));
      if (each.kind === "right") compare(each.what, each.stated, below(each.mu / 2));
      if (each.kind === "above") {
        const found = gaussianEpsilon(each.delta, each.mu);
        all = row(table, [each.what, String(each.stated), "at most " + found.toPrecision(10)], found >= each.stated * (1 - 1e-9) - 1e-9, "cruder, does not contradict") && all;
        if (!cruder || each.delta === data.delta) cruder = [found, each.stated];
      }
      if (each.kind === "composition") {
        const mu = each.rows * each.sensitivity / (each.divisor * each.std) * Math.sqrt(Math.ceil(each.steps / each.blocks));
        compare(each.what, each.stated, gaussianEpsilon(each.delta, mu));
      }
      if (each.kind === "renyi") compare(each.what, each.stated, renyiEpsilon(each.delta, each.slope));
      if (each.kind === "renyi-steps") {
        const mu = each.sensitivity / (each.divisor * each.std) * Math.sqrt(Math.ceil(each.steps / each.blocks));
        compare(each.what, each.stated, renyiEpsilon(each.delta, mu * mu / 2));
      }
      if (each.kind === "renyi-table") compare(each.what, each.stated, tableEpsilon(each.delta, each.orders, each.values));
      if (each.kind === "mixture") {
        const found = each.mus.reduce((sum, mu, i) => sum + each.weights[i] * (mu > 0 ? gaussianDelta(each.epsilon, mu) : 0), 0);
        compare(each.what, each.stated, found);
      }
    }
    const said = byId("recomputed-verdict");
    const digits = (value) => String(Number(value.toPrecision(4)));
    const bound = cruder && !sure.has(cruder[1]) ? "a cruder bound of epsilon, " + digits(cruder[0]) + ", does not contradict " + digits(cruder[1]) + "." : "";
    said.textContent = !table.children.length ? "No number of this certificate has a closed form that this page computes."
      : !all ? "A number computed on this page DIFFERS from the certificate: do not rely on it."
      : !sure.size ? "No number was computed again exactly; " + bound
      : "All numbers that were computed again exactly on this page agree with the certificate" + (bound ? "; " + bound : ".");
    said.className = !all ? "no" : sure.size ? "ok" : "soft";
  }

  function percent(value, round) {          // four digits, rounded by ``round``
    if (!(value > 0)) return "0 %";
    const unit = Math.pow(10, Math.floor(Math.log10(100 * value)) - 3), shown = round(100 * value / unit * (1 + (round === Math.ceil ? -1e-12 : 1e-12))) * unit;
    return Number(shown.toPrecision(4)) + " %";
  }
  function slide() {
    const slider = byId("rate"), said = byId("rate-said");
    if (!slider) return;
    const cursor = byId("tradeoff-cursor"), picture = byId("tradeoff");
    const left = Number(picture.dataset.left), right = Number(picture.dataset.right);
    const show = () => {
      const at = data.tests[Number(slider.value)];
      const text = "At a false-positive rate of " + percent(at.rate, Math.round) + ", a test finds at most " + percent(at.at_most, Math.ceil) +
        " of the used " + data.members + (at.at_least === null ? "." : "; for the worst loss of this class some test finds at least " + percent(at.at_least, Math.floor) + ".");
      said.textContent = text; slider.setAttribute("aria-valuetext", text);
      const place = (left + (right - left) * at.rate).toFixed(1);
      cursor.setAttribute("x1", place); cursor.setAttribute("x2", place); cursor.setAttribute("visibility", "visible");
    };
    slider.addEventListener("input", show); show();
  }

  async function check(file) {
    const said = byId("drop-said");
    said.textContent = "reading " + file.name + " ..."; said.className = "";
    const found = await sha256(new Uint8Array(await file.arrayBuffer()));
    const match = Object.keys(data.hashes).find((name) => data.hashes[name] === found);
    said.textContent = match ? "This is " + match + ", the very file that was certified: SHA-256 " + found + "." :
      "This is NOT a file of this certificate: SHA-256 " + found + (data.hashes[data.weights] ? ", certified weights have " + data.hashes[data.weights] : "") + ".";
    said.className = match ? "ok" : "no";
  }
  function receive() {
    const zone = byId("drop"), pick = byId("pick");
    if (!zone) return;
    for (const name of ["dragover", "dragenter"]) zone.addEventListener(name, (event) => { event.preventDefault(); zone.classList.add("over"); });
    zone.addEventListener("dragleave", () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => { event.preventDefault(); zone.classList.remove("over"); if (event.dataTransfer.files[0]) check(event.dataTransfer.files[0]); });
    pick.addEventListener("change", () => { if (pick.files[0]) check(pick.files[0]); });
  }
  function downloads() {
    for (const button of document.querySelectorAll("button[data-download]")) {
      button.addEventListener("click", () => {
        const [text, type] = data.downloads[button.dataset.download];
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([text], { type })); link.download = button.dataset.download;
        link.click(); setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      });
    }
  }
  window.lastiterateReport = { renyiEpsilon, gaussianDelta, gaussianEpsilon, plainSha256, below };
  slide(); receive(); downloads(); recompute();
})();
