/* "Why?" of a card: its equations with the reader's numbers in them. bookkit/explorer.py writes this
   into the script of each card, which explorer.js loads when somebody asks. `shown()` is all that the card has computed; what
   BOOK.reasons returns fills the numbers in anew. Classic script. */
(function () {
  "use strict";

  const format = BOOK.format, { write } = BOOK.svg;

  BOOK.reasons = function (root, shown, unbroken) {
    const find = selector => root.querySelector(selector), why = find(".explorer-why");

    function fillEquations() {
      fillSum();
      why.querySelectorAll("[data-simulated]").forEach(node => write(node, unbroken(format(shown()[node.dataset.simulated], "short duration"))));
      find(".explorer-equations").querySelectorAll("li").forEach(item => {
        const name = item.dataset.quantity;
        write(item.querySelector(".explorer-value"), format(shown()[name], item.dataset.style));
        const equation = item.querySelector(".math-scroll");
        if (!equation) return;
        let numbers = equation.querySelector(".explorer-numbers");
        if (!numbers) {
          numbers = equation.appendChild(document.createElement("div"));
          numbers.className = "explorer-numbers";
          numbers.appendChild(equation.querySelector("math").cloneNode(true));
          numbers.querySelectorAll("mspace, mo").forEach(sign => {
            if (sign.localName === "mspace" || sign.textContent === "⋅") sign.replaceWith(mathNode("mo", "×"));
          });
          numbers.querySelectorAll("[data-quantity]").forEach(place => place.replaceChildren(mathNode("mn", "")));
        }
        numbers.querySelectorAll("[data-quantity]").forEach(place => {
          const value = shown()[place.getAttribute("data-quantity")];
          write(place.firstChild, format(value, Number.isInteger(value) && value < 1e15 ? "exact" : "number"));
        });
      });
      find(".explorer-equations").querySelectorAll(".math-scroll").forEach(equation => { // keys can scroll what is too wide
        if (equation.scrollWidth > equation.clientWidth) equation.tabIndex = 0; else equation.removeAttribute("tabindex");
      });
    }

    /* The sentence as a sum; a unit that all numbers have is said once. What is zero is left out. */
    function fillSum() {
      const terms = Array.from(why.querySelectorAll(".explorer-sum button"));
      terms.forEach((term, k) => { term.parentNode.hidden = k > 0 && !shown()[term.dataset.quantity]; });
      const seen = terms.filter(term => !term.parentNode.hidden), texts = seen.map(term => format(shown()[term.dataset.quantity], term.dataset.style));
      const unit = texts[0].replace(/^\S+/, ""), same = texts.every(text => text.replace(/^\S+/, "") === unit);
      seen.forEach((term, k) => write(term.firstChild, same && k < texts.length - 1 ? texts[k].split(" ")[0] : unbroken(texts[k])));
    }

    /* A number of the sum opens its own equation, and those of what stands in it. */
    function openOwn(button) {
      const own = find(".explorer-own"), open = button.getAttribute("aria-expanded") === "false";
      why.querySelectorAll(".explorer-sum button").forEach(one => one.setAttribute("aria-expanded", String(open && one === button)));
      const line = name => why.querySelector(".explorer-all li[data-quantity=" + name + "]"), first = line(button.dataset.quantity);
      const names = [first, ...first.querySelectorAll("math [data-quantity]")].map(node => node.getAttribute("data-quantity"));
      const lines = Array.from(new Set(names), line).filter(one => one && one.querySelector(".math-scroll") || one === first);
      const list = document.createElement("ol");
      list.append(...lines.map(one => one.cloneNode(true)));
      own.replaceChildren(...(open ? [list] : []));
      fillEquations();
    }

    function fillWhy() {
      const terms = why.querySelectorAll(".explorer-sum button");
      terms.forEach(button => button.addEventListener("click", () => openOwn(button)));
      find(".explorer-all").addEventListener("toggle", fillEquations);
      if (terms.length === 1) openOwn(terms[0]); else fillEquations();
    }

    function mathNode(tag, text) {
      const node = document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
      node.textContent = text;
      return node;
    }

    fillWhy();
    return fillEquations;
  };
})();
